-- Put where a line --+ _notes asks for it.
-- What calls told of a webhook, unless the set-up has changed since. A hold only grows; health is written for a failure, at a change,
-- and once a second. A note that comes twice finds its failure known and adds nothing.
local rev_now = call('HGET', GATE, 'rev')
local function note(hook, rev, till, level, ok, bad, row)
  if rev ~= rev_now then return end
  if till ~= '0' and tonumber(till) > tonumber(call('HGET', HOLDS, hook) or 0) then call('HSET', HOLDS, hook, till) end
  if level == '0' then call('HDEL', HOLDS, '!' .. hook) elseif level ~= '' then call('HSET', HOLDS, '!' .. hook, level) end
  local old = call('HMGET', TOTALS, 'ok:' .. hook, 'bad:' .. hook, 'row:' .. hook)
  local was_ok, was_bad, was, is = tonumber(old[1] or 0), tonumber(old[2] or 0), tonumber(old[3] or 0), nil
  ok, bad = tonumber(ok), tonumber(bad)
  if bad > was_bad then is = row + (ok > 0 and 0 or was) elseif ok > was_bad and was > 0 then is = 0 end
  if ok > was_ok and (is or ok >= was_ok + 1000) then call('HSET', TOTALS, 'ok:' .. hook, ok) end
  if is then call('HSET', TOTALS, 'bad:' .. hook, string.format('%.3f', math.max(bad, was_bad)), 'row:' .. hook, is) end
end
