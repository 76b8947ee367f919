-- get: tasks as they stand; changes nothing
-- KEYS  see _lib.lua
-- ARGV  3 whole records 0|1   4… ids, up to 500
-- Answers for each id 'task', record or its head, run, state, score | 'unknown' | 'no_queue', one after the other.   O(n log m).
--+ _states
--+ _fronts
local answer, none = {}, nil
local runs, leases = call('HMGET', RUNS, unpack(ARGV, 4)), call('ZMSCORE', ACTIVE, unpack(ARGV, 4))
for first = 4, #ARGV, 8 do -- a few at a time: records are read whole
  for i, record in ipairs(call('HMGET', TASKS, unpack(ARGV, first, math.min(first + 7, #ARGV)))) do
    local at, n, state, score = first + i - 4, #answer, nil, nil
    if record then
      if leases[at] then state, score = 'active', leases[at] else state, score = place(ARGV[at + 3]) end
    end
    if state then
      if ARGV[3] == '0' then record = head_of(record) end
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = 'task', record, runs[at] or '', state, score
    else
      none = none or call('HEXISTS', QUEUES, QUEUE) == 1 and 'unknown' or 'no_queue'
      answer[n + 1] = none
    end
  end
end
return answer
