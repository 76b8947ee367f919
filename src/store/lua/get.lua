-- get: one task as it stands; changes nothing
-- KEYS  see _lib.lua
-- ARGV  4 id   5 whole record 0|1
-- Answers {'task', record or its head, run, state, score} | {'unknown'} | {'no_queue'}.   O(log m).
--+ _states
--+ _fronts
local record = call('HGET', TASKS, ARGV[4])
local found = record and view(ARGV[4], record)
if found and ARGV[5] == '0' then found[1] = head_of(record) end
if found then return { 'task', unpack(found) } end
return { call('HEXISTS', QUEUES, QUEUE) == 1 and 'unknown' or 'no_queue' }
