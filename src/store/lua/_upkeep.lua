-- Put where a line --+ _upkeep asks for it, in `visit`: what comes due in a queue by itself. Leases that ended -> scheduled, or cancelled
-- if marked; expired -> expired; records kept long enough -> gone. Pieces of 100 (retention 500).
if call('EXISTS', ACTIVE, EXPIRY) > 0 then
--+ _usual
  lease, expiry = head(ACTIVE), head(EXPIRY)
  if may_end and lease and lease <= now then
--+ _rows
--+ _kept
--+ _ends
    memory_full = full == 1
    for _, id in ipairs(call('ZRANGE', ACTIVE, '-inf', text(now), 'BYSCORE', 'LIMIT', '0', '100')) do
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
--+ _rows
--+ _kept
--+ _ends
    memory_full = full == 1
    for _, id in ipairs(call('ZRANGE', EXPIRY, '-inf', UPTO, 'BYSCORE', 'LIMIT', '0', '100')) do
      if call('ZSCORE', DUE, id) and call('HEXISTS', TASKS, id) == 1 then
        local run = read_run(call('HGET', RUNS, id))
        if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
        finish(id, EXPIRED, 'expired')
      else call('ZREM', EXPIRY, id) end -- an active one is judged by its settle
    end
    expiry = head(EXPIRY)
  end
end
local ended = { COMPLETED, CANCELLED, EXPIRED, DEAD }
local left = call('EXISTS', unpack(ended))
if left > 0 then
--+ _usual
--+ _kept
--+ _filled
  local function forget(set, ids) call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) call('ZREM', set, unpack(ids)) end
  for _, set in ipairs(filled(ended, left)) do
    local oldest, over, at = kept_in(set)
    if oldest <= upto - keeps(set) then
      forget(set, call('ZRANGE', set, '-inf', upto - keeps(set), 'BYSCORE', 'LIMIT', '0', '500'))
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
end
