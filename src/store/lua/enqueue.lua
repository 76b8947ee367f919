-- enqueue: –, cancelled, expired -> scheduled; up to 500 tasks of one queue
-- KEYS  see _lib.lua
-- ARGV  2 a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   4 all or none 0|1
--       5 the tasks but for their bytes, packed, each as length 1, id | version and flags 2 | marks 1 (1 its ms are a delay,
--       2 expires, 4 its expiry is a delay) | ms 8 | ms of its expiry 8   then per task 1: rest of the record
-- Answers {'no_queue'} | {'refused', base, answers} | {'done', base, answers, seq of the shard}; base: what delays count from;
--       answers: '' = all were created, or for each a word or {word, record, run, state, score}: created (with a view: the
--       service's own retry) | replayed | exists | active (cancelled, its attempt under way) | full | oom.
-- O(n log m). Checks all, then writes. At maxmemory the first write is refused: new tasks are `oom`, all else is answered.
--+ _rows
--+ _states
--+ _ready
--+ _clients
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local base = braked(now + (time[2] % 1000 > 0 and 1 or 0), tonumber(ARGV[2])) -- a delay counts from the next whole ms
local before, n, at, ids, heads, marks, times, expires_at = head(DUE) or NEVER, #ARGV - 5, 1, {}, {}, {}, {}, {}
for i = 1, n do ids[i], heads[i], marks[i], times[i], expires_at[i], at = struct.unpack('>Bc0c2Bi8i8', ARGV[5], at) end
local records, max, size = call('HMGET', TASKS, unpack(ids)), tonumber(call('HGET', GATE, 'max_size') or NEVER), 0
if max < NEVER then size = call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) end

-- The fingerprint of a record that has one: where the client chose the id.
local function fingerprint_of(record)
  local flags = string.byte(record, 2)
  if not has(flags, FINGERPRINT) then return end
  local from = has(flags, EXPIRES) and 43 or 35
  return string.sub(record, from, from + 15)
end

local rows, scores, expiries, free, made, earliest = {}, {}, {}, {}, 0, NEVER -- of those that are made
local time_of, stamp, score -- tasks of a batch often share their time: what is written of it is made once
local seen, answers, bad, plain, replays = {}, {}, false, true, 0 -- id -> which of those that are made
for i = 1, n do
  local id, mark, run_at, expires, old, mate = ids[i], marks[i], times[i], nil, records[i], seen[ids[i]]
  if mate then old = rows[2 * mate] end
  if mark % 2 == 1 then run_at = base + run_at end
  if run_at ~= time_of then
    time_of, stamp, score = run_at, struct.pack('>i8i8', base, run_at), text(math.max(base, run_at))
  end
  if mark >= 2 then expires = (mark >= 4 and base or 0) + expires_at[i] end
  local mine = heads[i] .. stamp .. (expires and struct.pack('>i8', expires) or '') .. ARGV[5 + i]
  local was, reused
  if old and not mate then
    was = view(id, old)
    local ended = was and (was[3] == 'cancelled' or was[3] == 'expired')
    if not was or ended and uid_of(id, old) ~= uid_of(id, mine) then reused, old = true, nil end -- own retry: cancelled is final
  end
  if not old then
    if size >= max then answers[i], bad, plain = 'full', true, false else
      size, made, earliest = size + 1, made + 1, math.min(earliest, math.max(base, run_at))
      seen[id] = made
      rows[2 * made - 1], rows[2 * made], scores[2 * made - 1], scores[2 * made] = id, mine, score, id
      if expires then expiries[#expiries + 1] = expires expiries[#expiries + 1] = id end
      if reused then free[#free + 1] = id end
      answers[i] = 'created'
    end
  else
    local word = 'exists'
    local run = was and was[3] == 'active' and read_run(was[2])
    if uid_of(id, old) == uid_of(id, mine) then word = 'created'
    elseif run and has(run.marks, CANCELLING) then word = 'active'
    elseif fingerprint_of(old) and fingerprint_of(old) == fingerprint_of(mine) and not (was and was[3] == 'dead') then word = 'replayed' end
    if word == 'exists' or word == 'active' then bad = true end
    replays, plain = replays + 1, false
    answers[i] = { word, unpack(was or { old, '', 'scheduled', scores[2 * mate - 1] }) }
  end
end
if bad and ARGV[4] == '1' then return { 'refused', base, answers } end

local first, seq = made > 0 and redis.pcall('HSET', TASKS, unpack(rows)), nil
if type(first) == 'table' and first.err then
  if ARGV[4] == '1' or not string.find(first.err, 'OOM', 1, true) then return first end
  for i, id in ipairs(ids) do if seen[id] then answers[i] = 'oom' end end
  plain = false
elseif first then
  call('ZADD', DUE, unpack(scores))
  if #free > 0 then call('ZREM', CANCELLED, unpack(free)) call('ZREM', EXPIRED, unpack(free)) call('HDEL', RUNS, unpack(free)) end
  if #expiries > 0 then call('ZADD', EXPIRY, unpack(expiries)) lower(head(EXPIRY)) end
  seq = call('INCRBY', SEQ, made)
  bump('enqueued', made)
  if earliest < before then
    local pull, push = ready(earliest)
    lower(push) ring(pull, push)
  end
end
repeated(replays)
return { 'done', base, plain and '' or answers, seq or call('GET', SEQ) or '0' }
