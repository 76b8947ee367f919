-- visit: all that is due in one queue. scheduled -> active (claims); leases that ended -> scheduled, or cancelled if marked;
--        expired -> expired; records kept long enough -> gone. It alone sets the queue's instant in the agenda exactly.
-- KEYS  see _lib.lua
-- ARGV  2 nothing later than this ms is taken, expires or is forgotten (brake)   4 most tasks   5 most payload bytes   6 lease ms
--       7 kind 0 push|1 pull   8 leases may end only if it is not later than this ms   9 memory is full 0|1: do not keep what expires
-- Answers {now, pull instant, push instant, agenda instant, rev, number of claims c, c x (id, record, run row before it, due), hold
--       pairs if c > 0}; -1 = never. A claim's fence is one more than that row's; no row ('') = a first claim.
-- O(n log m); pieces of 100 (retention 500). Runs at maxmemory, because its first write frees. Never sent twice.
call('ZREM', DUE, '') memory_full = ARGV[9] == '1'
local may_end, most, upto = now <= tonumber(ARGV[8]), math.min(tonumber(ARGV[4]), 500), math.min(now, tonumber(ARGV[2]))
local kind, room, retrying, before = tonumber(ARGV[7]), tonumber(ARGV[5]), 0, nil -- before: head of due, if something comes back
local lease, expiry, goes, UPTO = head(ACTIVE), head(EXPIRY), NEVER, text(upto)

if may_end and lease and lease <= now then
  for _, id in ipairs(due_in(ACTIVE, text(now), '100')) do
    local run, record = read_run(call('HGET', RUNS, id)), call('HGET', TASKS, id)
    if not record then call('ZREM', ACTIVE, id) call('HDEL', RUNS, id) bump('ghosts', 1)
    elseif run and has(run.marks, CANCELLING) then finish(id, CANCELLED, 'cancelled')
    else
      if run then
        if run.kind == PUSH then run.reclaims = run.reclaims + 1 else run.lapses = run.lapses + 1 bump('failed', 1) end
        run.marks = bit.bor(run.marks, RETRIED)
        retrying = retrying + 1
        call('HSET', RUNS, id, write_run(run))
      end
      local expires = expires_of(record)
      if expires and not (run and has(run.marks, WAIVED)) then call('ZADD', EXPIRY, expires, id) end
      before = before or head(DUE) or NEVER
      call('ZADD', DUE, UPTO, id)
      call('ZREM', ACTIVE, id)
    end
  end
  lease, expiry = head(ACTIVE), head(EXPIRY)
end
if expiry and expiry <= upto then
  for _, id in ipairs(due_in(EXPIRY, UPTO, '100')) do
    if call('ZSCORE', DUE, id) and call('HEXISTS', TASKS, id) == 1 then
      local run = read_run(call('HGET', RUNS, id))
      if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
      finish(id, EXPIRED, 'expired')
    else call('ZREM', EXPIRY, id) end -- an active one is judged by its settle
  end
  expiry = head(EXPIRY)
end
local function forget(set, ids) call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) call('ZREM', set, unpack(ids)) end
for _, set in ipairs(filled({ COMPLETED, CANCELLED, EXPIRED, DEAD })) do
  local oldest, over, at = kept_in(set)
  if oldest <= upto - keeps(set) then
    forget(set, due_in(set, upto - keeps(set), '500'))
    _, over, at = kept_in(set)
  end
  if over > 0 then -- those younger than a minute with a client's id stay, so that a repeated POST finds its task
    local z, extra = call('ZRANGE', set, '0', math.min(over, 500) - 1, 'WITHSCORES'), {}
    for i = 1, #z, 2 do
      if string.byte(z[i]) ~= 0 and tonumber(z[i + 1]) > now - 60000 then break end
      extra[#extra + 1] = z[i]
    end
    if #extra > 0 then forget(set, extra) _, over, at = kept_in(set) end
  end
  goes = math.min(goes, at)
end
local pull, push = ready()
local at, answer, n, claimed = kind == PUSH and push or kind == PULL and pull, { now, -1, -1, -1, gate()[10] or '0', 0 }, 0, 0
if at and at <= now and most > 0 then
  local g, us, tat = gate(), now * 1000, nil
  if g[3] then most = math.min(most, tonumber(g[3]) - call('ZCARD', ACTIVE)) end -- ZCARD is the counter: no drift, exact over replicas
  if g[4] then
    tat = math.max(us, tonumber(g[6] or 0))
    most = math.min(most, math.floor((us + tonumber(g[5] or 0) - tat) / tonumber(g[4])) + 1)
  end
  local z, ids, records = most > 0 and call('ZRANGE', DUE, '-inf', UPTO, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES') or {}, {}, {}
  for i = 1, #z, 2 do ids[#ids + 1] = z[i] end
  while n < #ids and room >= 0 do -- a few at a time: what there is no room for is read in vain
    for _, record in ipairs(call('HMGET', TASKS, unpack(ids, n + 1, math.min(n + 8, #ids)))) do
      room = room - #(record or '')
      if room < 0 and n > 0 then break end
      n = n + 1
      records[n] = record
    end
  end
  if n > 0 then
    local raws, leases, rows, till = call('HMGET', RUNS, unpack(ids, 1, n)), {}, {}, now + ARGV[6]
    local ends, before_uid, after_uid = text(till), struct.pack('>BI4BI2I4Bi8', 1, 1, kind, 0, 0, 0, now), '\0\0' -- of a first row
    for i = 1, n do
      local id, record, raw, row = ids[i], records[i], raws[i] or '', nil
      local run = raw ~= '' and read_run(raw)
      if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
      if not record then bump('ghosts', 1) call('HDEL', RUNS, id) else
        local uid = uid_of(id, record)
        if not run then row, raw = before_uid .. uid .. after_uid, '' else -- none or damaged: all first rows are alike
          if run.uid ~= uid then run = new_run(id, record, run.fence, 0) raw = write_run(run) end -- left by other content
          run.fence, run.kind, run.claimed = run.fence + 1, kind, now
          row = write_run(run)
        end
        leases[2 * claimed + 1], leases[2 * claimed + 2], rows[2 * claimed + 1], rows[2 * claimed + 2] = ends, id, id, row
        local c = 6 + 4 * claimed
        answer[c + 1], answer[c + 2], answer[c + 3], answer[c + 4] = id, record, raw, z[2 * i]
        claimed = claimed + 1
      end
    end
    if claimed > 0 then
      call('ZADD', ACTIVE, unpack(leases)) call('HSET', RUNS, unpack(rows))
      lease, g[6] = math.min(lease or NEVER, till), tat and string.format('%.0f', tat + claimed * g[4])
      if tat then call('HSET', GATE, 'tat_us', g[6]) end
    end
    call('ZREM', DUE, unpack(ids, 1, n))
  end
end
bump('retrying', retrying)

for i, hold in ipairs(any_holds and claimed > 0 and call('HGETALL', HOLDS) or {}) do answer[6 + 4 * claimed + i] = hold end
for i = 7 + 4 * claimed, #answer, 2 do -- those that are over go
  if string.byte(answer[i]) ~= 33 and (tonumber(answer[i + 1]) or 0) <= now then call('HDEL', HOLDS, answer[i]) end
end
if n > 0 then pull, push = ready() end
local agenda = wanted(push, may_end, lease, expiry, goes)
if agenda < NEVER then call('ZADD', AGENDA, text(agenda), QUEUE) else call('ZREM', AGENDA, QUEUE) end
if before and (head(DUE) or NEVER) < before then ring(pull, push) end
answer[2], answer[3], answer[4], answer[6] = pull or -1, push or -1, agenda < NEVER and agenda or -1, claimed
return answer
