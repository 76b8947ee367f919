-- audit: whether each of some ids stands where it should: in one set, with a record, its run row and its expiry; with repair
--        what does not, is put right
-- KEYS  see _lib.lua
-- ARGV  3 repair 0|1   4… ids
-- Answers {now, id, fault, id, fault, …}; a fault is one of
--   orphan (record in no set)   ghost (in a set, no record)   double (in several sets)   stray_run (run row, no record)
--   expiry (index wrong or missing)   run (row that cannot be read, of a task that no attempt holds)
-- O(n log m); n of 100. Without repair it changes nothing. Safe to repeat.
--+ _usual
--+ _rows
--+ _kept
local STRONGEST = { ACTIVE, DUE, DEAD, COMPLETED, CANCELLED, EXPIRED } -- the set that a task in several is left in
local repair, found = ARGV[3] == '1', { now }
local function fault(id, word) found[#found + 1] = id found[#found + 1] = word end

local function mend_ghost(id, sets, run)
  if sets[1] == ACTIVE or sets[1] == DUE then bump('ghosts', 1) end -- one that lived, so that the books balance
  if sets[1] == DUE and run and has(run.marks, RETRIED) then bump('retrying', -1) end
  for _, set in ipairs(sets) do call('ZREM', set, id) end
  call('ZREM', EXPIRY, id) call('HDEL', RUNS, id)
end

for i = 4, #ARGV do
  local id, sets = ARGV[i], {}
  for _, set in ipairs(STRONGEST) do if call('ZSCORE', set, id) then sets[#sets + 1] = set end end
  local record, raw, indexed = call('HGET', TASKS, id), call('HGET', RUNS, id), tonumber(call('ZSCORE', EXPIRY, id) or nil)
  local run = read_run(raw)
  if not record then
    if #sets > 0 then
      fault(id, 'ghost')
      if repair then mend_ghost(id, sets, run) end
    elseif raw or indexed then
      fault(id, raw and 'stray_run' or 'expiry')
      if repair then mend_ghost(id, sets, run) end
    end
  else
    if #sets == 0 then
      fault(id, 'orphan')
      if repair then -- whether it ended is not known: dead, so that a person decides
        call('ZADD', DEAD, now, id)
        call('ZREM', EXPIRY, id)
        bump('dead', 1)
        lower(step(now + keeps(DEAD)))
      end
    elseif #sets > 1 then
      fault(id, 'double')
      if repair then for n = 2, #sets do call('ZREM', sets[n], id) end end
    end
    if raw and not run and sets[1] ~= ACTIVE then
      fault(id, 'run')
      if repair then call('HDEL', RUNS, id) end
    end
    local expires = sets[1] == DUE and not (run and has(run.marks, WAIVED)) and expires_of(record)
    if expires and indexed ~= expires then
      fault(id, 'expiry')
      if repair then call('ZADD', EXPIRY, expires, id) lower(expires) end
    elseif indexed and not expires and sets[1] ~= ACTIVE and #sets > 0 then
      fault(id, 'expiry')
      if repair then call('ZREM', EXPIRY, id) end
    end
  end
end
return found
