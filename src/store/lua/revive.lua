-- revive: run, replay. dead, cancelled, expired -> scheduled, due now, a new life; scheduled -> due now
-- The fence goes on and webhooks that have the task keep it; tries, reclaims and lapses start anew; no expiry any more.
-- KEYS  see _lib.lua
-- ARGV  bound: "now" is no earlier than this ms, and no later than 4 s after it; 0 = now   3 only dead ones 0|1   4… ids, up to 500
-- Answers per id {'done'|'active'|'finished', record, run, state, score} | {'full'} | {'unknown'}, or {'no_queue'} alone.
-- O(n log m). Each id is checked, then written.
--+ _usual
--+ _rows
--+ _states
--+ _kept
--+ _earlier
--+ _ends
--+ _clients
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { { 'no_queue' } } end
local before, max, answers = head(DUE) or NEVER, tonumber(call('HGET', GATE, 'max_size') or NEVER), {}
local at = braked(now)
local from = { dead = DEAD, cancelled = CANCELLED, expired = EXPIRED }
local function revive(id)
  local record, state, score = call('HGET', TASKS, id), place(id)
  if not record or not state or ARGV[3] == '1' and state ~= 'dead' then return { 'unknown' } end
  if state == 'active' or state == 'completed' then
    return { state == 'active' and 'active' or 'finished', unpack(view(id, record)) }
  end
  if state == 'scheduled' then
    if tonumber(score) > at then
      call('ZADD', DUE, at, id)
      if call('HEXISTS', RUNS, id) == 0 then call('HSET', RUNS, id, write_run(new_run(id, record))) end -- see _rows
    else repeated(1) end
    return { 'done', unpack(view(id, record)) }
  end
  if state ~= 'dead' and max < NEVER and call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) >= max then
    return { 'full' }
  end
  local run, expires = read_run(call('HGET', RUNS, id)) or new_run(id, record), expires_of(record)
  run.reclaims, run.lapses, run.bytes, run.marks = 0, 0, '', expires and WAIVED or 0
  call('HSET', RUNS, id, write_run(run)) -- see _rows
  call('ZADD', DUE, at, id)
  call('ZREM', from[state], id)
  bump('revived', 1)
  return { 'done', unpack(view(id, record)) }
end
for i = 4, #ARGV do answers[#answers + 1] = revive(ARGV[i]) end
ring_if_earlier(before)
return answers
