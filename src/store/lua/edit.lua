-- edit: PATCH. scheduled -> scheduled: another time, other content, or both, with no gap in which the task is gone
-- KEYS  see _lib.lua
-- ARGV  bound: a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   3 id   4 time '-'|'in'|'at'   5 ms   6 content 0|1, and if 1:
--       7 the head of the record that it was made from (up to the payload)   8 version and flags   9 rest of the record
--       10 expiry '-'|'='|'in'|'at'  11 ms   12 1 = a new uid: webhooks that have the old content do not count
-- Answers {'done', record, run, state, score} | {'active'|'finished', …the same} | {'conflict'} | {'unknown'} | {'no_queue'} |
--       {'expires_first'}: it would end before its own time.
-- O(log m). Checks, then writes.
--+ _usual
--+ _rows
--+ _states
--+ _earlier
--+ _clients
local id, record = ARGV[3], call('HGET', TASKS, ARGV[3])
local state, score = place(id)
if not record or not state then return { call('HEXISTS', QUEUES, QUEUE) == 1 and 'unknown' or 'no_queue' } end
if state ~= 'scheduled' then return { state == 'active' and 'active' or 'finished', unpack(view(id, record)) } end
local base, before = braked(now + (us % 1000 > 0 and 1 or 0)), head(DUE)
local created, run_at = struct.unpack('>i8i8', record, 3)
local moved, content, run = ARGV[4] ~= '-', ARGV[6] == '1', read_run(call('HGET', RUNS, id))
local stored, new_expiry = expires_of(record), content and ARGV[10] ~= '='
if content and string.sub(record, 1, #ARGV[7]) ~= ARGV[7] then return { 'conflict' } end
if moved then run_at = (ARGV[4] == 'in' and base or 0) + ARGV[5] end
if new_expiry then stored = ARGV[10] ~= '-' and (ARGV[10] == 'in' and base or 0) + ARGV[11] or nil end
local expires = (new_expiry or not (run and has(run.marks, WAIVED))) and stored
if expires and expires <= run_at and (moved or new_expiry) then return { 'expires_first' } end

local times = struct.pack('>i8i8', created, run_at)
if content then
  record = ARGV[8] .. times .. (stored and struct.pack('>i8', stored) or '') .. ARGV[9]
  if run then
    if ARGV[12] == '1' then run.uid, run.done = uid_of(id, record), '' end
    if new_expiry and has(run.marks, WAIVED) then run.marks = run.marks - WAIVED end
    call('HSET', RUNS, id, write_run(run))
  end
  if new_expiry then
    call('ZREM', EXPIRY, id)
    if stored then call('ZADD', EXPIRY, stored, id) lower(head(EXPIRY)) end
  end
else
  record = string.sub(record, 1, 2) .. times .. string.sub(record, 19)
end
call('HSET', TASKS, id, record)
if moved then
  local due = math.max(base, run_at)
  if not run and due ~= math.max(created, run_at) then call('HSET', RUNS, id, write_run(new_run(id, record))) end -- see _rows
  call('ZADD', DUE, due, id)
end
ring_if_earlier(before)
return { 'done', unpack(view(id, record)) }
