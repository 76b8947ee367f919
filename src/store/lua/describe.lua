-- describe: a queue's settings, gate, webhooks, holds and health as they stand together; changes nothing
-- KEYS  see _lib.lua
-- Answers {now, settings JSON, gate pairs, webhook pairs, hold pairs, totals pairs} | {} where there is no such queue.
local settings = call('HGET', QUEUES, QUEUE)
if not settings then return {} end
return { now, settings, call('HGETALL', GATE), call('HGETALL', HOOKS), call('HGETALL', HOLDS), call('HGETALL', TOTALS) }
