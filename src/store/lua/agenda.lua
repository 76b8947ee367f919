-- agenda: the queues that want a visit soon, and the shards' enqueue counters; changes nothing
-- KEYS  the agendas of some shards, then their seq, in the same order (not the KEYS of the other scripts)
-- ARGV  1 clock offset ms   2 how far to look ahead ms   3 most queues a shard
-- Answers {now, seqs, {queue, instant, queue, instant, …}}.
local time, shards = redis.call('TIME'), #KEYS / 2
local now, seqs, soon = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1], {}, {}
for i = 1, shards do
  seqs[i] = redis.call('GET', KEYS[shards + i]) or '0'
  for _, x in ipairs(redis.call('ZRANGE', KEYS[i], '-inf', now + ARGV[2], 'BYSCORE', 'LIMIT', 0, ARGV[3], 'WITHSCORES')) do soon[#soon + 1] = x end
end
return { now, seqs, soon }
