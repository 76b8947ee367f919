-- drop_queue: a queue with its webhooks -> gone; with tasks that live or are dead only if forced
-- KEYS  see _lib.lua
-- ARGV  3 force 0|1
-- Answers {'done'} | {'not_empty'} | {'no_queue'}.   O(1): memory is given back in the background. Runs at maxmemory.
--+ _ring
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
if ARGV[3] ~= '1' and call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) > 0 then return { 'not_empty' } end
call('HDEL', QUEUES, QUEUE)
call('ZREM', AGENDA, QUEUE)
call('UNLINK', GATE, HOLDS, DUE, ACTIVE, DEAD, COMPLETED, CANCELLED, EXPIRED, EXPIRY, TASKS, RUNS, HOOKS, TOTALS)
ring(nil, now) -- whoever knows the queue looks again, and finds nothing
return { 'done' }
