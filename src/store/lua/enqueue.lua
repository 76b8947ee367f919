-- enqueue: –, cancelled, expired -> scheduled; up to 500 tasks of one queue
-- KEYS  see _lib.lua
-- ARGV  bound: a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   numbers: all or none 0|1 1
--       3 the tasks but for their bytes, packed, each as length 1, id | version and flags 2 | marks 1 (1 its ms are a delay,
--       2 expires, 4 its expiry is a delay) | ms 8 | ms of its expiry 8   then per task 1: rest of the record
-- Answers base 8, seq of the shard 8, packed, if all were created; base: what delays count from.
--       Or {'no_queue'} | {'refused', base, answers} | {'done', base, answers, seq}; answers: for each a word or
--       {word, record, run, state, score}: created (with a view: the service's own retry) | replayed | exists | active (cancelled, its
--       attempt under way) | full | oom.
-- O(n log m). Checks all, then writes. At maxmemory the first write is refused: new tasks are `oom`, all else is answered.
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local base = now + (us % 1000 > 0 and 1 or 0) -- a delay counts from the next whole ms
if BOUND > 0 then base = math.max(BOUND, math.min(base, BOUND + 4000)) end -- see _clients
local packed, n, at, ids, take = ARGV[3], #ARGV - 3, 1, {}, struct.unpack
for i = 1, n do
  ids[i], at = take('>Bc0', packed, at)
  at = at + 19
end
local records, max, size = call('HMGET', TASKS, unpack(ids)), call('HGET', GATE, 'max_size'), 0
max = max and max + 0 or NEVER
if max < NEVER then size = call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) end

local made, rows, scores = 0, { '', '' }, { '', '' } -- those that are made
local expiries, free -- of these, those that expire; those whose id had a life before
local time_of, stamp, due, score -- tasks of a batch often share their time: what is written of it is made once
local earliest = NEVER -- the first instant at which one is due
local answers, others, bad, replays = {}, false, false, 0 -- of others than those that are made
local seen = {} -- id -> which of those that are made
at = 1
for i = 1, n do
  local id, head, mark, run_at, expires = ids[i], take('>c2Bi8i8', packed, at + #ids[i] + 1)
  local old, mate = records[i], n > 1 and seen[id]
  at = at + #id + 20
  if mark % 2 == 1 then run_at = base + run_at end
  if run_at ~= time_of then
    time_of, stamp, due = run_at, struct.pack('>i8i8', base, run_at), math.max(base, run_at)
    score = text(due)
  end
  if mark < 2 then expires = nil elseif mark >= 4 then expires = base + expires end
  local mine = head .. stamp .. (expires and struct.pack('>i8', expires) or '') .. ARGV[3 + i]
  local reused = false
  if old or mate then
--+ _taken
  end
  if not old then
    if size >= max then answers[i], bad, others = 'full', true, true else
      size, made = size + 1, made + 1
      if due < earliest then earliest = due end
      if n > 1 then seen[id] = made end
      rows[2 * made - 1], rows[2 * made], scores[2 * made - 1], scores[2 * made] = id, mine, score, id
      if expires then
        expiries = expiries or {}
        expiries[#expiries + 1] = expires expiries[#expiries + 1] = id
      end
      if reused then
        free = free or {}
        free[#free + 1] = id
      end
    end
  end
end
if others then
  for i = 1, n do answers[i] = answers[i] or 'created' end
  if bad and string.byte(ARGV[1], MORE) == 1 then return { 'refused', base, answers } end
end

local is_first = made > 0 and call('ZCOUNT', DUE, '-inf', text(earliest)) == 0 -- nobody else is due by then
local first, seq = made > 0 and redis.pcall('HSET', TASKS, unpack(rows, 1, 2 * made)), nil
if type(first) == 'table' and first.err then
  if string.byte(ARGV[1], MORE) == 1 or not string.find(first.err, 'OOM', 1, true) then return first end
  others = true
  for i = 1, n do if seen[ids[i]] or (answers[i] or 'created') == 'created' then answers[i] = 'oom' end end
elseif first then
  local count = made == 1 and '1' or string.format('%d', made)
  call('ZADD', DUE, unpack(scores, 1, 2 * made))
  if free then call('ZREM', CANCELLED, unpack(free)) call('ZREM', EXPIRED, unpack(free)) call('HDEL', RUNS, unpack(free)) end
  if expiries then
--+ _usual
    call('ZADD', EXPIRY, unpack(expiries))
    lower(head(EXPIRY))
  end
  seq = call('INCRBY', SEQ, count)
  call('HINCRBY', TOTALS, 'enqueued', count)
  if is_first then
--+ _ready
--+ _ring
    local pull, push = ready(earliest)
    if push then call('ZADD', AGENDA, 'LT', text(push), QUEUE) end
    ring(pull, push)
  end
end
if not others then return struct.pack('>i8i8', base, seq) end
if replays > 0 then
--+ _usual
--+ _clients
  repeated(replays)
end
return { 'done', base, answers, seq or call('GET', SEQ) or '0' }
