-- Put where a line --+ _closely asks for it, in `settle`: tasks that are no plain ends, each looked at before anything is written.
--+ _usual
--+ _rows
--+ _states
--+ _come_to
answers, items = { done and n or 0 }, {}
if n > 0 and not done then
  if alike then torn = n end
  for i = 1, n do
    local is = read_run(rows[2 * i])
    items[i] = { ids[i], is.uid, is.fence, plain, '0', '', is.done, '0', is.bytes }
  end
end
for i = first, #ARGV, 9 do items[#items + 1] = { unpack(ARGV, i, i + 8) } end
local known, changed, same = {}, {}, 0 -- id -> run with .place: what earlier items of this batch have made of it
local totals = { delivered = 0, dead = 0, cancelled = 0, expired = 0, failed = 0, retrying = 0 }
for i, item in ipairs(items) do ids[i] = item[1] end
local leases = call('ZMSCORE', ACTIVE, unpack(ids, 1, #items))
before, raws = head(DUE) or NEVER, call('HMGET', RUNS, unpack(ids, 1, #items))
local function has_it(done, hook) return string.find(done, ',' .. hook .. ',', 1, true) end
local function settle(i, id, uid, fence, verb, at, about, won, failed, bytes)
  local run = known[id]
  if not run then
    run = read_run(raws[i])
    if not run then return 'gone' end
    local taken = i <= torn and not place(id) -- it was active until just now
    run.place = (leases[i] or taken) and 'active' or call('ZSCORE', DUE, id) and 'scheduled' or 'ended'
    run.was, known[id] = run.place, run
  end
  if run.uid ~= uid then return 'gone' end -- replaced: a 2xx for the old content says nothing about the new
  if verb == 'plain' then
    if run.place ~= 'active' or raws[i] ~= was[i] then return 'unlike' end
    verb = 'ack'
  end
  fence = tonumber(fence)
  if run.place == 'ended' or run.place == 'completed' then
    local done = run.place == 'completed' or call('ZSCORE', COMPLETED, id)
    return done and (verb == 'done' or run.fence == fence) and 'already' or 'late'
  end
  if run.place ~= 'active' and run.place ~= 'scheduled' then return 'late' end
  local held, all, done = run.place == 'active' and run.fence == fence, about ~= '', run.done
  for hook in string.gmatch(won, '[^,]+') do if not has_it(done, hook) then done = (done == '' and ',' or done) .. hook .. ',' end end
  for hook in string.gmatch(about, '[^,]+') do all = all and has_it(done, hook) end
  if done ~= run.done then run.done, changed[id] = done, run end
  local complete = verb == 'done' or verb == 'ack' and run.fence == fence or held and (verb == 'retry' or verb == 'dead') and all
  if not complete and not held then return 'lease_lost' end
  if bytes ~= '' then run.bytes = held and bytes or run.bytes .. bytes end
  if held then totals.failed = totals.failed + failed end
  changed[id] = run
  if run.place == 'scheduled' and has(run.marks, RETRIED) then totals.retrying = totals.retrying - 1 end
  if complete then run.place, totals.delivered = 'completed', totals.delivered + 1
  elseif has(run.marks, CANCELLING) then run.place, totals.cancelled = 'cancelled', totals.cancelled + 1 -- nothing leads back
  elseif verb == 'dead' or verb == 'expired' then run.place, totals[verb] = verb, totals[verb] + 1
  else
    if verb == 'retry' then run.marks = bit.bor(run.marks, RETRIED) end
    if has(run.marks, RETRIED) then totals.retrying = totals.retrying + 1 end
    run.place, run.at = 'scheduled', at
  end
  return run.place
end

for i = 1, #items do
  answers[i + 1] = settle(i, unpack(items[i]))
  if answers[i + 1] == 'already' then same = same + 1 end
end
if same > 0 then call('ZREM', DUE, '') bump('replays', same) end -- writes, so that WAIT covers what it repeats
local writes, come, expiring, dead_kept = {}, {}, call('EXISTS', EXPIRY) == 1, nil -- one command for all that it is about
local function write(command, key, a, b)
  local w = writes[command .. key] or { command, key }
  writes[command .. key], w[#w + 1], w[#w + 2] = w, a, b
end
local sets = { completed = COMPLETED, cancelled = CANCELLED, expired = EXPIRED, dead = DEAD, scheduled = DUE, active = ACTIVE }
for id, run in pairs(changed) do
  local living, time_kept = run.place == 'scheduled' or run.place == 'active', kept
  if run.place == 'dead' then dead_kept = dead_kept or tonumber(call('HGET', GATE, 'keep_dead') or 86400000) time_kept = dead_kept end
  if drop and (run.place == 'completed' or run.place == 'expired') then time_kept = 0 end
  if run.place ~= run.was then write('ZREM', sets[run.was], id) end
  if not living and expiring then write('ZREM', EXPIRY, id) end
  if living or time_kept > 0 then
    write('HSET', RUNS, id, write_run(run))
    if run.place ~= run.was then write('ZADD', sets[run.place], run.place == 'scheduled' and run.at or NOW, id) end
    if not living then come[sets[run.place]] = { (come[sets[run.place]] or { 0 })[1] + 1, time_kept } end
  else write('HDEL', TASKS, id) write('HDEL', RUNS, id) end
end
for _, w in pairs(writes) do call(unpack(w)) end
for set, of in pairs(come) do come_to(set, unpack(of)) end
for counter, by in pairs(totals) do bump(counter, by) end
if writes['ZREM' .. ACTIVE] then removed = removed + 1 end
