-- stats: the figures of a queue, which fit together; changes nothing
-- KEYS  see _lib.lua
-- Answers {now, head of due or '', due, six cards in the order of `places`, gate (open, paused), totals pairs, webhooks, holds} | {}.
--+ _states
if call('HEXISTS', QUEUES, QUEUE) == 0 then return {} end
local cards = {}
for i, p in ipairs(places()) do cards[i] = call('ZCARD', p[2]) end
local gate = call('HMGET', GATE, 'open', 'paused')
return { now, call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or '', call('ZCOUNT', DUE, '-inf', now), cards,
  gate[1] or '', gate[2] or '', call('HGETALL', TOTALS), call('HLEN', HOOKS), call('HGETALL', HOLDS) }
