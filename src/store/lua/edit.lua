-- edit: PATCH. scheduled -> scheduled: another time, other content, or both, with no gap in which the task is gone
-- KEYS  see _lib.lua
-- ARGV  2 a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   4 id   5 time '-'|'in'|'at'   6 ms   7 content 0|1, and if 1:
--       8 the head of the record that it was made from (up to the payload)   9 version and flags   10 rest of the record
--       11 expiry '-'|'='|'in'|'at'  12 ms   13 1 = a new uid: webhooks that have the old content do not count
-- Answers {'done', record, run, state, score} | {'active'|'finished', …the same} | {'conflict'} | {'unknown'} | {'no_queue'} |
--       {'expires_first'}: it would end before its own time.
-- O(log m). Checks, then writes.
--+ _rows
--+ _states
--+ _ready
--+ _earlier
--+ _clients
local id, record = ARGV[4], call('HGET', TASKS, ARGV[4])
local state, score = place(id)
if not record or not state then return { call('HEXISTS', QUEUES, QUEUE) == 1 and 'unknown' or 'no_queue' } end
if state ~= 'scheduled' then return { state == 'active' and 'active' or 'finished', unpack(view(id, record)) } end
local base, before = braked(now + (time[2] % 1000 > 0 and 1 or 0), tonumber(ARGV[2])), head(DUE)
local created, run_at = struct.unpack('>i8i8', record, 3)
local moved, content, run = ARGV[5] ~= '-', ARGV[7] == '1', read_run(call('HGET', RUNS, id))
local stored, new_expiry = expires_of(record), content and ARGV[11] ~= '='
if content and string.sub(record, 1, #ARGV[8]) ~= ARGV[8] then return { 'conflict' } end
if moved then run_at = (ARGV[5] == 'in' and base or 0) + ARGV[6] end
if new_expiry then stored = ARGV[11] ~= '-' and (ARGV[11] == 'in' and base or 0) + ARGV[12] or nil end
local expires = (new_expiry or not (run and has(run.marks, WAIVED))) and stored
if expires and expires <= run_at and (moved or new_expiry) then return { 'expires_first' } end

local times = struct.pack('>i8i8', created, run_at)
if content then
  record = ARGV[9] .. times .. (stored and struct.pack('>i8', stored) or '') .. ARGV[10]
  if run then
    if ARGV[13] == '1' then run.uid, run.done = uid_of(id, record), '' end
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
if moved then call('ZADD', DUE, math.max(base, run_at), id) end
ring_if_earlier(before)
return { 'done', unpack(view(id, record)) }
