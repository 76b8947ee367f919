-- Put before every script. A task's state is the set that holds its id; each script works on one queue. What only some scripts use is
-- in parts of its own, which stand where a line `--+ part` names them: each closure is made anew for each call, and costs.
-- KEYS  1 agenda  2 queues  3 seq  4 gate  5 holds  6 due  7 active  8 dead  9 completed  10 cancelled  11 expired
--       12 expiry  13 tasks  14 runs  15 hooks  16 totals                     (all of them, in this order, in every script)
-- ARGV  1 clock offset ms (tests)   2 cap or floor ms, see the script   3 queue   4… see the script
-- record  version 1 | flags 1 | created 8 | run_at 8 | [expires 8] | [uid 16] | [fingerprint 16] | [length 4, options] | payload
-- run     version 1 | fence 4 | kind 1 | reclaims 2 | lapses 4 | marks 1 | claimed 8 | uid 16 | length 2, webhooks | Rust's bytes
local AGENDA,QUEUES,SEQ,GATE,HOLDS,DUE,ACTIVE,DEAD,COMPLETED,CANCELLED,EXPIRED,EXPIRY,TASKS,RUNS,HOOKS,TOTALS = unpack(KEYS)
local call, QUEUE, NEVER = redis.call, ARGV[3], 9e15
local UID, FINGERPRINT, EXPIRES, OPTIONS = 1, 2, 4, 8 -- flags of a record
local CANCELLING, WAIVED, RETRIED, PUSH, PULL = 1, 2, 4, 0, 1 -- marks of a run: cancelled; expiry waived by `run`; had an attempt; kinds of a claim
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
-- Numbers are dear as arguments: Redis prints each with all its digits. So is '%.0f': the digits of a float are long division.
local function text(ms) return ms >= 1e9 and ms < 1e15 and string.format('%d%09d', ms / 1e9, ms % 1e9) or string.format('%.0f', ms) end
local function has(bits, flag) return bit.band(bits or 0, flag) ~= 0 end
local function head(set) return tonumber(call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end
local function lower(at) if at then call('ZADD', AGENDA, 'LT', text(at), QUEUE) end end -- too early costs a visit, too late is a bug
local function bump(counter, by) if by ~= 0 then call('HINCRBY', TOTALS, counter, string.format('%d', by)) end end
