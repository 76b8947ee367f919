-- books: whether a queue's figures fit together, and its instant in the agenda is not too late; with repair they are put right
-- KEYS  see _lib.lua
-- ARGV  3 repair 0|1
-- Answers {now, listed 0|1, has gate 0|1, rev, open webhooks, records, members of all sets, wanted or -1, agenda or -1,
--   begun - ended - living, retrying, totals pairs}.   O(1), and O(log m) with repair. Without repair it changes nothing.
--+ _usual
--+ _states
--+ _ready
--+ _ring
--+ _kept
--+ _filled
local repair, members = ARGV[3] == '1', 0
for _, p in ipairs(places()) do members = members + call('ZCARD', p[2]) end
local function total(counter) return tonumber(call('HGET', TOTALS, counter) or 0) end
local balance = total('enqueued') + total('revived') - call('ZCARD', DUE) - call('ZCARD', ACTIVE)
for _, ended in ipairs({ 'delivered', 'dead', 'cancelled', 'expired', 'purged', 'ghosts' }) do balance = balance - total(ended) end
local pull, push = ready()
-- processes put off what is no task for a moment, and one in trouble a lease that ended by a second: that is not too late
local soon, goes = now + 1000, NEVER
local function from_soon(at) return at and math.max(at, soon) end
local sets = { COMPLETED, CANCELLED, EXPIRED, DEAD }
for _, set in ipairs(filled(sets, #sets)) do goes = math.min(goes, (select(3, kept_in(set)))) end
local may_end, lease, expiry = false, from_soon(head(ACTIVE)), from_soon(head(EXPIRY))
goes = from_soon(goes)
--+ _wanted
local is = tonumber(call('ZSCORE', AGENDA, QUEUE) or nil)
local listed, retrying = call('HEXISTS', QUEUES, QUEUE), total('retrying')
if repair then
  if agenda < (is or NEVER) then lower(agenda) ring(pull, push) end
  -- counters only grow: what is missing counts as taken out of the queue, what is too much as put in
  bump(balance > 0 and 'purged' or 'enqueued', math.abs(balance))
end
return { now, listed, g[5] and 1 or 0, g[5] or '0', g[1] or '', call('HLEN', TASKS), members, agenda < NEVER and agenda or -1,
  is or -1, balance, retrying, call('HGETALL', TOTALS) }
