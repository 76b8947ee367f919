-- visit: all that is due in one queue. scheduled -> active (claims); leases that ended -> scheduled, or cancelled if marked;
--        expired -> expired; records kept long enough -> gone. It alone sets the queue's instant in the agenda exactly.
-- KEYS  see _lib.lua
-- ARGV  bound: nothing later is taken, expires or is forgotten (brake)   numbers: most tasks 4 | most payload bytes 4 | lease ms 8 |
--       leases may end only if it is not later than this ms 8 | brief: leases, expiry and retention may wait until this ms, when the
--       queue is visited again for them; 0 = they are looked at 8 | kind 1, 0 push 1 pull | memory is full 0|1: do not keep what expires 1
-- Answers {facts, rev, claims, …}, facts packed: now 8 | pull, push and agenda instant 8 each, -1 = never | number of claims 4 | whether
--       all are first claims 1. Claims are each: id, record. If some are no first ones, there follow the dues of all, then their run rows
--       before the claim ('' = first). A claim's fence is one more than that row's. First claims are due as their records say.
--       Then hold pairs, if there are claims.
-- O(n log m); pieces of 100 (retention 500). Runs at maxmemory, because its first write frees. Never sent twice.
call('ZREM', EXPIRY, '')
--+ _ready
local most, room, lease_ms, may_end_until, by, kind, full = struct.unpack('>I4I4i8i8i8BB', ARGV[1], MORE)
local may_end, upto, retrying, before = now <= may_end_until, now < BOUND and now or BOUND, 0, nil -- before: head of due, if something comes back
local UPTO, lease, expiry, goes = text(upto), nil, nil, NEVER -- the first that ends; expires; and of those that ended, goes
local brief = by > now and by <= now + 1000 and not g[3] and not g[4] -- what only expires must not count towards a limit
if brief then goes = by else
--+ _upkeep
end
local pull, push = ready(0)
local at, n, claimed, next_due, first, answer = push, 0, 0, nil, true, { '', g[5] or '0' }
if kind == PULL then at = pull end
if at and at <= now and most > 0 then
  local tat, ids = nil, {}
  if most > 500 then most = 500 end
  if g[3] then most = math.min(most, g[3] - call('ZCARD', ACTIVE)) end -- ZCARD is the counter: no drift, exact over replicas
  if g[4] then
    tat = math.max(now * 1000, g[7] or 0)
    most = math.min(most, math.floor((now * 1000 + (g[6] or 0) - tat) / g[4]) + 1)
  end
  -- one more than is taken: the head of what is left
  if most > 0 then ids = call('ZRANGE', DUE, '-inf', UPTO, 'BYSCORE', 'LIMIT', '0', string.format('%d', most + 1)) end
  local found = #ids > most and most or #ids
  while n < found and room >= 0 do -- a few at a time: what there is no room for is read in vain
    local some = call('HMGET', TASKS, unpack(ids, n + 1, math.min(n + 8, found)))
    for i = 1, #some do
      local record = some[i]
      room = room - #(record or '')
      if room < 0 and n > 0 then break end
      n = n + 1
      answer[2 * n + 1], answer[2 * n + 2] = ids[n], record
      first = first and record
    end
  end
  if n > 0 then
    local raws, leases, rows = call('HMGET', RUNS, unpack(ids, 1, n)), { '', '' }, { '', '' }
    for i = 1, n do first = first and not raws[i] end
    local till, dues = now + lease_ms, not first and call('ZMSCORE', DUE, unpack(ids, 1, n))
    local ends, before_uid = text(till), struct.pack('>BI4BI2I4Bi8', 1, 1, kind, 0, 0, 0, now) -- of a first row
    next_due = ids[n + 1] and call('ZSCORE', DUE, ids[n + 1])
--+ _uid
    if first then -- mostly
      for i = 1, n do
        local id = ids[i]
        leases[2 * i - 1], leases[2 * i] = ends, id
        rows[2 * i - 1], rows[2 * i] = id, before_uid .. uid_of(id, answer[2 * i + 2]) .. '\0\0'
      end
      claimed = n
    else
--+ _again
    end
    if claimed > 0 then
      call('ZADD', ACTIVE, unpack(leases, 1, 2 * claimed)) call('HSET', RUNS, unpack(rows, 1, 2 * claimed))
      lease = lease and lease < till and lease or till
      if tat then
        g[7] = string.format('%.0f', tat + claimed * g[4])
        call('HSET', GATE, 'tat_us', g[7])
      end
    end
    call('ZREM', DUE, unpack(ids, 1, n)) -- last: where Redis refuses one of these commands, the task must still stand somewhere
  end
end
if retrying ~= 0 then call('HINCRBY', TOTALS, 'retrying', string.format('%d', retrying)) end
if any_holds and claimed > 0 then
--+ _holds
end
pull, push = ready(next_due)
--+ _wanted
if agenda < NEVER then call('ZADD', AGENDA, text(agenda), QUEUE) else agenda = -1 call('ZREM', AGENDA, QUEUE) end
if before then
--+ _usual
--+ _ring
  if (head(DUE) or NEVER) < before then ring(pull, push) end
end
answer[1] = struct.pack('>i8i8i8i8I4B', now, pull or -1, push or -1, agenda, claimed, first and 1 or 0)
return answer
