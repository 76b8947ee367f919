-- Put before every script. A task's state is the set that holds its id; each script works on one queue. What only some scripts use is
-- in parts of its own, which stand where a line `--+ part` names them: each closure is made anew for each call, and costs.
-- KEYS  1 agenda  2 queues  3 seq  4 gate  5 holds  6 due  7 active  8 dead  9 completed  10 cancelled  11 expired
--       12 expiry  13 tasks  14 runs  15 hooks  16 totals                     (all of them, in this order, in every script)
-- ARGV  1 numbers, packed: clock offset ms (tests) 8 | bound ms 8, see the script | what the script says   2 queue   3… see the script
-- record  version 1 | flags 1 | created 8 | run_at 8 | [expires 8] | [uid 16] | [fingerprint 16] | [length 4, options] | payload
-- run     version 1 | fence 4 | kind 1 | reclaims 2 | lapses 4 | marks 1 | claimed 8 | uid 16 | length 2, webhooks | Rust's bytes
local AGENDA,QUEUES,SEQ,GATE,HOLDS,DUE,ACTIVE,DEAD,COMPLETED,CANCELLED,EXPIRED,EXPIRY,TASKS,RUNS,HOOKS,TOTALS = unpack(KEYS)
local call, QUEUE, NEVER = redis.call, ARGV[2], 9e15
local UID, FINGERPRINT, EXPIRES, OPTIONS = 1, 2, 4, 8 -- flags of a record
local CANCELLING, WAIVED, RETRIED, PUSH, PULL = 1, 2, 4, 0, 1 -- marks of a run: cancelled; expiry waived by `run`; had an attempt; kinds of a claim
local offset, BOUND, MORE = struct.unpack('>i8i8', ARGV[1]) -- more: where the script's own numbers begin
local time = call('TIME')
local us = time[2] + 0 -- of this second; `tonumber` reads its text twice
local now = time[1] * 1000 + (us - us % 1000) / 1000 + offset
-- Numbers are dear as arguments: Redis prints each with all its digits. So is '%.0f': the digits of a float are long division.
-- Mostly the same one is asked for again.
local text_of, text_was
local function text(ms)
  if ms ~= text_of then
    text_of, text_was = ms, ms >= 1e9 and ms < 1e15 and string.format('%d%09d', ms / 1e9, ms % 1e9) or string.format('%.0f', ms)
  end
  return text_was
end
