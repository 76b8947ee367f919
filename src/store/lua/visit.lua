-- visit: all that is due in one queue. scheduled -> active (claims); leases that ended -> scheduled, or cancelled if marked;
--        expired -> expired; records kept long enough -> gone. It alone sets the queue's instant in the agenda exactly.
-- KEYS  see _lib.lua
-- ARGV  2 nothing later than this ms is taken, expires or is forgotten (brake)   4 most tasks   5 most payload bytes   6 lease ms
--       7 kind 0 push|1 pull   8 leases may end only if it is not later than this ms   9 memory is full 0|1: do not keep what expires
-- Answers {now, pull instant, push instant, agenda instant, rev, claims, hold pairs if there are claims}; -1 = never;
--       a claim is six of them: id, uid, fence, record, run before it, due.
-- O(n log m); pieces of 100 (retention 500). Runs at maxmemory, because its first write frees. Never sent twice.
call('ZREM', DUE, '') memory_full = ARGV[9] == '1'
local before, may_end, most, upto = head(DUE) or NEVER, now <= tonumber(ARGV[8]), math.min(tonumber(ARGV[4]), 500), math.min(now, tonumber(ARGV[2]))
local kind, room, retrying = tonumber(ARGV[7]), tonumber(ARGV[5]), 0

if may_end then
  for _, id in ipairs(due_in(ACTIVE, NOW, '100')) do
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
      call('ZADD', DUE, upto, id)
      call('ZREM', ACTIVE, id)
    end
  end
end
for _, id in ipairs(due_in(EXPIRY, upto, '100')) do
  if call('ZSCORE', DUE, id) and call('HEXISTS', TASKS, id) == 1 then
    local run = read_run(call('HGET', RUNS, id))
    if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
    finish(id, EXPIRED, 'expired')
  else call('ZREM', EXPIRY, id) end -- an active one is judged by its settle
end

local function forget(set, ids)
  call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) call('ZREM', set, unpack(ids))
end
for _, set in ipairs(filled({ COMPLETED, CANCELLED, EXPIRED, DEAD })) do
  local old = due_in(set, upto - keeps(set), '500')
  if #old > 0 then forget(set, old) end
  local over = set ~= DEAD and call('ZCARD', set) - most_kept() or 0
  if over > 0 then -- those younger than a minute with a client's id stay, so that a repeated POST finds its task
    local z, extra = call('ZRANGE', set, '0', math.min(over, 500) - 1, 'WITHSCORES'), {}
    for i = 1, #z, 2 do
      if string.byte(z[i]) ~= 0 and tonumber(z[i + 1]) > now - 60000 then break end
      extra[#extra + 1] = z[i]
    end
    if #extra > 0 then forget(set, extra) end
  end
end

local pull, push = ready()
local at, claims = kind == PUSH and push or kind == PULL and pull, {}
if at and at <= now and most > 0 then
  local g, us, tat = call('HMGET', GATE, 'mif', 'rate_us', 'tol_us', 'tat_us'), now * 1000, nil
  if g[1] then most = math.min(most, tonumber(g[1]) - call('ZCARD', ACTIVE)) end -- ZCARD is the counter: no drift, exact over replicas
  if g[2] then
    tat = math.max(us, tonumber(g[4] or 0))
    most = math.min(most, math.floor((us + tonumber(g[3] or 0) - tat) / tonumber(g[2])) + 1)
  end
  local z, ids = most > 0 and call('ZRANGE', DUE, '-inf', upto, 'BYSCORE', 'LIMIT', '0', most, 'WITHSCORES') or {}, {}
  for i = 1, #z, 2 do
    room = room - call('HSTRLEN', TASKS, z[i])
    if room < 0 and #ids > 0 then break end
    ids[#ids + 1] = z[i]
  end
  if #ids > 0 then
    local records, raws, leases, rows = call('HMGET', TASKS, unpack(ids)), call('HMGET', RUNS, unpack(ids)), {}, {}
    local till, first = string.format('%.0f', now + ARGV[6]), write_run({ fence = 1, kind = kind, reclaims = 0, lapses = 0,
      marks = 0, claimed = now, uid = string.rep('-', 16), done = '', bytes = '' })
    local before_uid, after_uid = string.sub(first, 1, 21), string.sub(first, 38)
    for i, id in ipairs(ids) do
      local run, uid, fence, row = read_run(raws[i]), records[i] and uid_of(id, records[i]), 1, nil
      if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
      if not uid then bump('ghosts', 1) call('HDEL', RUNS, id) else
        if not run then row, raws[i] = before_uid .. uid .. after_uid, '' else -- none or damaged: all first rows are alike
          if run.uid ~= uid then run, raws[i] = new_run(id, records[i], run.fence), '' end -- left by other content
          run.fence, run.kind, run.claimed = run.fence + 1, kind, now
          fence, row = run.fence, write_run(run)
        end
        leases[#leases + 1] = till leases[#leases + 1] = id
        rows[#rows + 1] = id rows[#rows + 1] = row
        local n = #claims
        claims[n + 1], claims[n + 2], claims[n + 3], claims[n + 4], claims[n + 5], claims[n + 6] = id, uid, fence, records[i], raws[i], z[2 * i]
      end
    end
    if #claims > 0 then call('ZADD', ACTIVE, unpack(leases)) call('HSET', RUNS, unpack(rows)) end
    call('ZREM', DUE, unpack(ids))
    if tat and #claims > 0 then call('HSET', GATE, 'tat_us', string.format('%.0f', tat + #leases / 2 * g[2])) end
  end
end
bump('retrying', retrying)

local holds = #claims > 0 and holds_now() or {}
pull, push = ready()
local agenda = wanted(push, may_end)
if agenda < NEVER then call('ZADD', AGENDA, agenda, QUEUE) else call('ZREM', AGENDA, QUEUE) end
if (head(DUE) or NEVER) < before then ring(pull, push) end
return { now, pull or -1, push or -1, agenda < NEVER and agenda or -1, call('HGET', GATE, 'rev') or '0', claims, holds }
