-- Put where a line --+ _taken asks for it, in `enqueue`: the id is taken, by a task that is there or by one of the same call.
--+ _rows
--+ _states
-- The fingerprint of a record that has one: where the client chose the id.
local function fingerprint_of(record)
  local flags = string.byte(record, 2)
  if not has(flags, FINGERPRINT) then return end
  local from = has(flags, EXPIRES) and 43 or 35
  return string.sub(record, from, from + 15)
end
local was
if mate then old = rows[2 * mate] else
  was = view(id, old)
  local ended = was and (was[3] == 'cancelled' or was[3] == 'expired')
  if not was or ended and uid_of(id, old) ~= uid_of(id, mine) then reused, old = true, nil end -- own retry: cancelled is final
end
if old then
  local word = 'exists'
  local run = was and was[3] == 'active' and read_run(was[2])
  if uid_of(id, old) == uid_of(id, mine) then word = 'created'
  elseif run and has(run.marks, CANCELLING) then word = 'active'
  elseif fingerprint_of(old) and fingerprint_of(old) == fingerprint_of(mine) and not (was and was[3] == 'dead') then word = 'replayed' end
  if word == 'exists' or word == 'active' then bad = true end
  replays, others = replays + 1, true
  answers[i] = { word, unpack(was or { old, '', 'scheduled', scores[2 * mate - 1] }) }
end
