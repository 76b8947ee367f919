-- enqueue: –, cancelled, expired -> scheduled; up to 500 tasks of one queue
-- KEYS  see _lib.lua
-- ARGV  2 a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   4 all or none 0|1
--       then per task 7: id, version and flags, rest of the record, 'in'|'at', ms, expiry '-'|'in'|'at', ms
-- Answers {'no_queue'} | {'refused', base, answers} | {'done', base, answers, seq of the shard}; base: what delays count from.
--       An answer is a word or {word, record, run, state, score}: created (with a view: the service's own retry) |
--       replayed | exists | active (cancelled, its attempt under way) | full | oom.
-- O(n log m). Checks all, then writes. At maxmemory the first write is refused: new tasks are `oom`, all else is answered.
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local base = braked(now + (time[2] % 1000 > 0 and 1 or 0), tonumber(ARGV[2])) -- a delay counts from the next whole ms
local before, n, ids = head(DUE) or NEVER, (#ARGV - 4) / 7, {}
for i = 1, n do ids[i] = ARGV[7 * i - 2] end
local records, max, size = call('HMGET', TASKS, unpack(ids)), tonumber(call('HGET', GATE, 'max_size') or NEVER), 0
if max < NEVER then size = call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) end

-- The fingerprint of a record that has one: where the client chose the id.
local function fingerprint_of(record)
  local flags = string.byte(record, 2)
  if not has(flags, FINGERPRINT) then return end
  local at = has(flags, EXPIRES) and 43 or 35
  return string.sub(record, at, at + 15)
end

-- Tasks of a batch often share their time: what is written of it is made once.
local made, stamp, score
local function write_time(run_at)
  if run_at ~= made then
    made, stamp, score = run_at, struct.pack('>i8i8', base, run_at), string.format('%.0f', math.max(base, run_at))
  end
end

local seen, due, answers, fresh, reused, bad, replays = {}, {}, {}, {}, {}, false, 0
for i, id in ipairs(ids) do
  local a = 7 * i - 2
  local expires = ''
  write_time((ARGV[a + 3] == 'in' and base or 0) + ARGV[a + 4])
  if ARGV[a + 5] ~= '-' then expires = struct.pack('>i8', (ARGV[a + 5] == 'in' and base or 0) + ARGV[a + 6]) end
  local mine = ARGV[a + 1] .. stamp .. expires .. ARGV[a + 2]
  local old, was = seen[id] or records[i]
  if old and not seen[id] then
    was = view(id, old)
    local free = was and (was[3] == 'cancelled' or was[3] == 'expired')
    if not was or free and uid_of(id, old) ~= uid_of(id, mine) then reused[id], old = true, nil end -- own retry: cancelled is final
  end
  if not old then
    if size >= max then answers[i], bad = 'full', true else
      size, seen[id], due[id] = size + 1, mine, score
      fresh[#fresh + 1] = { id, mine, score, expires ~= '' and expires_of(mine) }
      answers[i] = 'created'
    end
  else
    local word = 'exists'
    local run = was and was[3] == 'active' and read_run(was[2])
    if uid_of(id, old) == uid_of(id, mine) then word = 'created'
    elseif run and has(run.marks, CANCELLING) then word = 'active'
    elseif fingerprint_of(old) and fingerprint_of(old) == fingerprint_of(mine) and not (was and was[3] == 'dead') then word = 'replayed' end
    if word == 'exists' or word == 'active' then bad = true end
    replays = replays + 1
    answers[i] = { word, unpack(was or { old, '', 'scheduled', due[id] }) }
  end
end
if bad and ARGV[4] == '1' then return { 'refused', base, answers } end

local rows, scores, expiries, free = {}, {}, {}, {}
for i, t in ipairs(fresh) do
  rows[2 * i - 1], rows[2 * i], scores[2 * i - 1], scores[2 * i] = t[1], t[2], t[3], t[1]
  if t[4] then expiries[#expiries + 1] = t[4] expiries[#expiries + 1] = t[1] end
  if reused[t[1]] then free[#free + 1] = t[1] end
end
local first = #fresh > 0 and redis.pcall('HSET', TASKS, unpack(rows))
if type(first) == 'table' and first.err then
  if ARGV[4] == '1' or not string.find(first.err, 'OOM', 1, true) then return first end
  for i, id in ipairs(ids) do if seen[id] then answers[i] = 'oom' end end
elseif first then
  call('ZADD', DUE, unpack(scores))
  if #free > 0 then call('ZREM', CANCELLED, unpack(free)) call('ZREM', EXPIRED, unpack(free)) call('HDEL', RUNS, unpack(free)) end
  if #expiries > 0 then call('ZADD', EXPIRY, unpack(expiries)) lower(head(EXPIRY)) end
  call('INCRBY', SEQ, #fresh)
  bump('enqueued', #fresh)
  ring_if_earlier(before)
end
repeated(replays)
return { 'done', base, answers, call('GET', SEQ) or '0' }
