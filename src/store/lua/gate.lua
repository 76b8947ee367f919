-- gate: settings, pause and webhooks of a queue; creates it; a higher rev; always rings
-- KEYS  see _lib.lua
-- ARGV  3 rev that it was read at, or '-'   4 new queue as JSON ('' = it must exist)   5 settings as JSON ('' = as they are)
--       6 number of gate pairs g, then g x (field, value; '' deletes), then triples: 'set'|'del'|'free', webhook, JSON
-- Answers {'ok', rev, created 0|1} | {'no_queue'} | {'conflict'} (somebody else changed it since).
--+ _usual
local old, rev = call('HGET', QUEUES, QUEUE), call('HGET', GATE, 'rev') or '0'
if not old and ARGV[4] == '' then return { 'no_queue' } end
if old and ARGV[3] ~= '-' and ARGV[3] ~= rev then return { 'conflict' } end
call('ZREM', DUE, '')
local created = old and 0 or 1
if created == 1 then
  call('HSET', QUEUES, QUEUE, string.format('{"v":1,"created_at":%.0f,"settings":%s}', now, ARGV[4]))
elseif ARGV[5] ~= '' then
  call('HSET', QUEUES, QUEUE, string.format('{"v":1,"created_at":%.0f,"settings":%s}', cjson.decode(old).created_at or now, ARGV[5]))
end
local first = 7 + 2 * ARGV[6]
for i = 7, first - 1, 2 do
  if ARGV[i + 1] == '' then call('HDEL', GATE, ARGV[i]) else call('HSET', GATE, ARGV[i], ARGV[i + 1]) end
end
for i = first, #ARGV, 3 do
  if ARGV[i] == 'set' then call('HSET', HOOKS, ARGV[i + 1], ARGV[i + 2])
  else
    call('HDEL', HOLDS, ARGV[i + 1], '!' .. ARGV[i + 1])
    call('HDEL', TOTALS, 'ok:' .. ARGV[i + 1], 'bad:' .. ARGV[i + 1], 'row:' .. ARGV[i + 1])
    if ARGV[i] == 'del' then call('HDEL', HOOKS, ARGV[i + 1]) end
  end
end
-- no rev comes twice, also if the queue was made anew or an old snapshot was restored: somebody may know it from before
rev = string.format('%.0f', math.max(now, rev + 1))
call('HSET', GATE, 'rev', rev)
--+ _ready
--+ _ring
local pull, push = ready()
lower(push)
lower(now) -- what a changed retention no longer keeps goes at the next visit
ring(pull, push)
return { 'ok', rev, created }
