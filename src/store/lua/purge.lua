-- purge: tasks of one state -> gone, without a record; a piece of 500
-- KEYS  see _lib.lua
-- ARGV  3 state (any but active)
-- Answers {'done', how many, how many are left} | {'no_queue'}.   O(500 log m). Runs at maxmemory. Safe to repeat.
--+ _usual
--+ _rows
--+ _states
--+ _clients
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local set
for _, p in ipairs(places()) do if p[1] == ARGV[3] then set = p[2] end end
local ids = call('ZRANGE', set, 0, 499)
if #ids > 0 then
  if set == DUE then
    local retrying = 0
    for _, raw in ipairs(call('HMGET', RUNS, unpack(ids))) do
      local run = read_run(raw)
      if run and has(run.marks, RETRIED) then retrying = retrying + 1 end
    end
    call('ZREM', EXPIRY, unpack(ids))
    bump('retrying', -retrying)
    bump('purged', #ids)
  end
  call('HDEL', TASKS, unpack(ids))
  call('HDEL', RUNS, unpack(ids))
  call('ZREM', set, unpack(ids))
end
if #ids == 0 then repeated(1) end
return { 'done', #ids, call('ZCARD', set) }
