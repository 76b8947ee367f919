-- cancel: scheduled, dead -> cancelled; active -> marked, so that no further attempt starts
-- KEYS  see _lib.lua
-- ARGV  3 id
-- Answers {'done'|'already'|'under_way'|'finished', record, run, state, score} | {'unknown'} | {'no_queue'}.
-- O(log m). Checks, then writes; runs at maxmemory, because its first write frees.
--+ _usual
--+ _rows
--+ _states
--+ _kept
--+ _ends
--+ _clients
local id = ARGV[3]
local record = call('HGET', TASKS, id)
local state, score = place(id)
if not record or not state then
  return { call('HEXISTS', QUEUES, QUEUE) == 1 and 'unknown' or 'no_queue' }
end
call('ZREM', DUE, '')
local raw = call('HGET', RUNS, id)
if state == 'scheduled' then
  local run = read_run(raw)
  if run and has(run.marks, RETRIED) then bump('retrying', -1) end
  finish(id, CANCELLED, 'cancelled')
  return { 'done', record, raw or '', 'cancelled', tostring(now) }
elseif state == 'dead' then -- moves no total: this life has ended before
  call('ZREM', DEAD, id)
  keep(id, CANCELLED)
  return { 'done', record, raw or '', 'cancelled', tostring(now) }
elseif state == 'active' then
  local run = read_run(raw) or new_run(id, record)
  run.marks = bit.bor(run.marks, CANCELLING)
  raw = write_run(run)
  call('HSET', RUNS, id, raw)
  return { 'under_way', record, raw or '', state, score }
end
if state ~= 'completed' then repeated(1) end
return { state == 'completed' and 'finished' or 'already', record, raw or '', state, score }
