-- settle: active -> completed | scheduled (retry, release) | dead | expired | cancelled (if marked); up to 500 tasks
-- A 2xx for a living task counts from anyone under its uid; only the current fence moves a task backwards.
-- KEYS  see _lib.lua
-- ARGV  4 memory is full 0|1: what completes or expires is not kept   5 plain ends, packed: first claims that are done (push) or
--       acked (pull), each as length 1, id | run row as it was claimed 39 | length 4, run row as it ends   6 number of notes h, then
--       h x (webhook, rev, held until ms, holds of its breaker, last success ms, last failure ms.us, failures since), 0 or '' =
--       nothing of it, then per other task 9: id, uid, fence, verb, at ms, about (w1,w2), won (w1,w2), failed calls, Rust's bytes
--       verb: done | retry | release | dead | expired | ack (pull).   about: webhooks that still want it, or gave up
-- Answers now alone, if all were plain ends and are completed. Or the number of plain ends if they are completed, or else 0; then a word
--       for each task that this does not tell of: completed | scheduled | dead | expired | cancelled | lease_lost | gone | late |
--       already | unlike (a plain ack of what is not as claimed: no effect); then now; then a head of a record for each plain ack.
-- O(n log m). Runs at maxmemory, because its first write frees.
call('ZREM', DUE, '')
local NOW, mif, kept, drop, first = text(now), gate()[3], keeps(COMPLETED), ARGV[4] == '1', 7 + 7 * ARGV[6]
local full = mif and call('ZCARD', ACTIVE) >= tonumber(mif)
for i = 7, first - 1, 7 do note(gate()[10], unpack(ARGV, i, i + 6)) end
local function come_to(set) -- tasks were put there: the instant at which they go
  local over = set ~= DEAD and call('ZCARD', set) > most_kept()
  lower(step(over and now or now + keeps(set)))
end

-- Plain ends. A row that is as it was claimed tells all of its task but that it is still active, and that its removal tells.
local ids, was, ends, n = read_plain(ARGV[5])
local raws, alike, answers, items, removed, torn, before = n > 0 and call('HMGET', RUNS, unpack(ids)), n > 0, { 0 }, {}, 0, 0, nil
for i = 1, n do alike = alike and raws[i] == was[i] end
local plain = n > 0 and string.byte(was[1], 6) == PULL and 'plain' or 'done' -- the verb of all
local heads = plain == 'plain' and heads_of(ids) or {} -- their consumers are shown the tasks
for i, front in ipairs(heads) do if front == '' then alike, was[i] = false, '' end end -- damaged or missing: for a look to tell
if alike then removed = call('ZREM', ACTIVE, unpack(ids)) end
if alike and removed == n then
  answers[1] = n
  if call('EXISTS', EXPIRY) == 1 then call('ZREM', EXPIRY, unpack(ids)) end
  if kept <= 0 or drop then call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) else
    local rows, scores = {}, {}
    for i = 1, n do rows[2 * i - 1], rows[2 * i], scores[2 * i - 1], scores[2 * i] = ids[i], ends[i], NOW, ids[i] end
    call('HSET', RUNS, unpack(rows)) call('ZADD', COMPLETED, unpack(scores))
    come_to(COMPLETED)
  end
  bump('delivered', n)
else
  if alike then torn = n end
  for i = 1, n do local is = read_run(ends[i]) items[i] = { ids[i], is.uid, is.fence, plain, '0', '', is.done, '0', is.bytes } end
end
-- All others are looked at closely.
for i = first, #ARGV, 9 do items[#items + 1] = { unpack(ARGV, i, i + 8) } end
if #items > 0 then
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
    if verb == 'plain' then if run.place ~= 'active' or raws[i] ~= was[i] then return 'unlike' end verb = 'ack' end
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
  repeated(same)
  local writes, come, expiring = {}, {}, call('EXISTS', EXPIRY) == 1 -- one command for all that it is about
  local function write(command, key, a, b)
    local w = writes[command .. key] or { command, key }
    writes[command .. key], w[#w + 1], w[#w + 2] = w, a, b
  end
  local sets = { completed = COMPLETED, cancelled = CANCELLED, expired = EXPIRED, dead = DEAD, scheduled = DUE, active = ACTIVE }
  for id, run in pairs(changed) do
    local living, keep = run.place == 'scheduled' or run.place == 'active', run.place == 'dead' and keeps(DEAD) or kept
    if drop and (run.place == 'completed' or run.place == 'expired') then keep = 0 end
    if run.place ~= run.was then write('ZREM', sets[run.was], id) end
    if not living and expiring then write('ZREM', EXPIRY, id) end
    if living or keep > 0 then
      write('HSET', RUNS, id, write_run(run))
      if run.place ~= run.was then write('ZADD', sets[run.place], run.place == 'scheduled' and run.at or NOW, id) end
      if not living then come[sets[run.place]] = true end
    else write('HDEL', TASKS, id) write('HDEL', RUNS, id) end
  end
  for _, w in pairs(writes) do call(unpack(w)) end
  for set in pairs(come) do come_to(set) end
  for counter, by in pairs(totals) do bump(counter, by) end
  if writes['ZREM' .. ACTIVE] then removed = removed + 1 end
end
if full and removed > 0 then local pull, push = ready() if pull then lower(push) ring(pull, push) end elseif before then ring_if_earlier(before) end
answers[#answers + 1] = now for _, front in ipairs(heads) do answers[#answers + 1] = front end
return #items == 0 and #heads == 0 and now or answers
