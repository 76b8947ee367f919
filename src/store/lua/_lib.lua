-- Put before every script. A task's state is the set that holds its id; each script works on one queue. What only some scripts use is
-- in parts of its own: each closure is made anew for each call, and costs.
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

local function braked(at, floor) return floor > 0 and math.max(floor, math.min(at, floor + 4000)) or at end -- the caller's idea of now, 2 s either way
local function has(bits, flag) return bit.band(bits or 0, flag) ~= 0 end
local function head(set) return tonumber(call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]) end
-- A damaged record has a uid too, and a bad run row counts as none. A service-made id is 0x00 and its UUID, the uid until an edit.
local function uid_of(id, record)
  local flags, uid = string.byte(record, 2), string.sub(id, 2, 17)
  if has(flags, UID) then
    local at = has(flags, EXPIRES) and 27 or 19
    uid = string.sub(record, at, at + 15)
  end
  return #uid == 16 and uid or string.rep('\0', 16)
end
local function expires_of(record)
  if has(string.byte(record, 2), EXPIRES) and #record >= 26 then return (struct.unpack('>i8', record, 19)) end
end
local function read_run(raw)
  if not raw then return end
  local ok, version, fence, kind, reclaims, lapses, marks, claimed, uid, done, at = pcall(struct.unpack, '>BI4BI2I4Bi8c16Hc0', raw)
  if not ok or version ~= 1 then return end
  return { fence = fence, kind = kind, reclaims = reclaims, lapses = lapses, marks = marks, claimed = claimed,
    uid = uid, done = done, bytes = string.sub(raw, at) }
end
local function write_run(r)
  return struct.pack('>BI4BI2I4Bi8c16H', 1, r.fence, r.kind, math.min(r.reclaims, 65535), r.lapses, r.marks, r.claimed,
    r.uid, #r.done) .. r.done .. r.bytes
end

local read_gate -- 1 open  2 paused  3 mif  4 rate_us  5 tol_us  6 tat_us  7 keep  8 keep_dead  9 keep_max  10 rev
local function gate()
  read_gate = read_gate or call('HMGET', GATE, 'open', 'paused', 'mif', 'rate_us', 'tol_us', 'tat_us', 'keep', 'keep_dead', 'keep_max', 'rev')
  return read_gate
end
-- Holds: webhook -> until ms;  '!' .. webhook -> holds so far of a breaker that is open, for the processes that did not open it.
local any_holds -- as `ready` saw it: a queue without holds pays nothing
-- The first instant at which a claim could take something: for pull, for push; nil = never.
local function ready(due) -- due: the head of due, where it is known
  due = due or head(DUE)
  if not due then return end
  local g = gate()
  local at = math.max(due, tonumber(g[2] or 0))
  if at >= NEVER then return end
  if g[3] and call('ZCARD', ACTIVE) >= tonumber(g[3]) then at = math.max(at, head(ACTIVE) or NEVER) end
  if g[4] then at = math.max(at, math.ceil((tonumber(g[6] or 0) - tonumber(g[5] or 0)) / 1000)) end
  if not g[1] or g[1] == '' then return at end
  local free = NEVER
  if any_holds == nil then any_holds = call('EXISTS', HOLDS) == 1 end
  if not any_holds then free = 0 else
    for hook in string.gmatch(g[1], '%S+') do free = math.min(free, tonumber(call('HGET', HOLDS, hook) or 0)) end
  end
  return at, math.max(at, free)
end
local function ring(pull, push)
  local pull_at = pull and text(pull) or '-'
  local push_at = push == pull and pull_at or push and text(push) or '-'
  call('PUBLISH', string.match(AGENDA, '^(.-):{') .. ':bell', QUEUE .. ' ' .. pull_at .. ' ' .. push_at)
end
local function lower(at) if at then call('ZADD', AGENDA, 'LT', text(at), QUEUE) end end -- too early costs a visit, too late is a bug
local function ring_if_earlier(before) -- before: head of due when the script began
  if (head(DUE) or NEVER) < before then
    local pull, push = ready()
    lower(push) ring(pull, push)
  end
end
-- Retention goes in steps of 10 s. A gate that was lost keeps everything for a day.
local function keeps(set) return tonumber(gate()[set == DEAD and 8 or 7] or 86400000) end
local function most_kept() return tonumber(gate()[9] or NEVER) end
local function step(at) return (math.floor(at / 10000) + 1) * 10000 end
local function bump(counter, by) if by ~= 0 then call('HINCRBY', TOTALS, counter, by) end end
local function repeated(n) if n > 0 then call('ZREM', DUE, '') bump('replays', n) end end -- writes, so that WAIT covers what it repeats
-- The states and their sets; made only when somebody asks.
local function places()
  return { { 'scheduled', DUE }, { 'active', ACTIVE }, { 'completed', COMPLETED }, { 'dead', DEAD }, { 'cancelled', CANCELLED },
    { 'expired', EXPIRED } }
end
-- Where an id stands: {state, score}, or nil.
local function place(id)
  for _, p in ipairs(places()) do
    local score = call('ZSCORE', p[2], id)
    if score then return p[1], score end
  end
end
-- A task as Rust reads it: {record, run, state, score}.
local function view(id, record)
  local state, score = place(id)
  if state then return { record, call('HGET', RUNS, id) or '', state, score } end
end
