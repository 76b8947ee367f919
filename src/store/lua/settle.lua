-- settle: active -> completed | scheduled (retry, release) | dead | expired | cancelled (if marked); up to 500 tasks
-- A 2xx for a living task counts from anyone under its uid; only the current fence moves a task backwards.
-- KEYS  see _lib.lua
-- ARGV  4 memory is full 0|1: what completes or expires is not kept   5 number of notes h, then h x (webhook, rev, held until ms,
--       holds of its breaker, last success ms, last failure ms.us, failures since), 0 or '' = nothing of it, then per task 9:
--       id, uid, fence, verb, at ms, about (w1,w2), won (w1,w2), failed calls, Rust's bytes
--       verb: done | retry | release | dead | expired | ack (pull).   about: webhooks that still want it, or gave up
-- Answers a word per task: completed | scheduled | dead | expired | cancelled | lease_lost | gone | late | already; then now.
-- O(n log m). Runs at maxmemory, because its first write frees.
call('ZREM', DUE, '')
local before, gate = head(DUE) or NEVER, call('HMGET', GATE, 'mif', 'keep', 'keep_dead', 'keep_max', 'rev')
local full = gate[1] and call('ZCARD', ACTIVE) >= tonumber(gate[1])
local first = 6 + 7 * ARGV[5]
-- What calls told of their webhooks, unless the set-up has changed since. A hold only grows; health is written for a failure, at
-- a change, and once a second. A note that comes twice finds its failure known and adds nothing.
local function note(hook, rev, till, level, ok, bad, row)
  if rev ~= gate[5] then return end
  if tonumber(till) > tonumber(call('HGET', HOLDS, hook) or 0) then call('HSET', HOLDS, hook, till) end
  if level == '0' then call('HDEL', HOLDS, '!' .. hook) elseif level ~= '' then call('HSET', HOLDS, '!' .. hook, level) end
  local old = call('HMGET', TOTALS, 'ok:' .. hook, 'bad:' .. hook, 'row:' .. hook)
  local was_ok, was_bad, was, is = tonumber(old[1] or 0), tonumber(old[2] or 0), tonumber(old[3] or 0), nil
  ok, bad = tonumber(ok), tonumber(bad)
  if bad > was_bad then is = row + (ok > 0 and 0 or was) elseif ok > was_bad and was > 0 then is = 0 end
  if ok > was_ok and (is or ok >= was_ok + 1000) then call('HSET', TOTALS, 'ok:' .. hook, ok) end
  if is then call('HSET', TOTALS, 'bad:' .. hook, string.format('%.3f', math.max(bad, was_bad)), 'row:' .. hook, is) end
end
for i = 6, first - 1, 7 do note(unpack(ARGV, i, i + 6)) end
local ids = {}
for i = first, #ARGV, 9 do ids[#ids + 1] = ARGV[i] end
local raws, leases = call('HMGET', RUNS, unpack(ids)), call('ZMSCORE', ACTIVE, unpack(ids))
local known, changed = {}, {}  -- id -> run with .place: what earlier items of this batch have made of it
local totals = { delivered = 0, dead = 0, cancelled = 0, expired = 0, failed = 0, retrying = 0 }

local function has_it(done, hook) return string.find(done, ',' .. hook .. ',', 1, true) end
-- The webhooks that have the task, and those that won now.
local function with(done, won)
  if won == '' then return done end
  if done == '' and not string.find(won, ',', 1, true) then return ',' .. won .. ',' end -- the usual case
  for hook in string.gmatch(won, '[^,]+') do if not has_it(done, hook) then done = (done == '' and ',' or done) .. hook .. ',' end end
  return done
end

local function settle(i, a)
  local id, run = ids[i], known[ids[i]]
  if not run then
    run = read_run(raws[i])
    if not run then return 'gone' end
    run.place = leases[i] and 'active' or call('ZSCORE', DUE, id) and 'scheduled' or 'ended'
    run.was = run.place
    known[id] = run
  end
  local fence, verb, won = tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 6]
  if run.uid ~= ARGV[a + 1] then return 'gone' end -- replaced: a 2xx for the old content says nothing about the new
  if run.place == 'ended' or run.place == 'completed' then
    local done = run.place == 'completed' or call('ZSCORE', COMPLETED, id)
    return done and (verb == 'done' or run.fence == fence) and 'already' or 'late'
  end
  if run.place ~= 'active' and run.place ~= 'scheduled' then return 'late' end
  local held, all, done = run.place == 'active' and run.fence == fence, ARGV[a + 5] ~= '', with(run.done, won)
  if all then for hook in string.gmatch(ARGV[a + 5], '[^,]+') do all = all and has_it(done, hook) end end
  if done ~= run.done then run.done, changed[id] = done, run end
  local complete = verb == 'done' or verb == 'ack' and run.fence == fence or held and (verb == 'retry' or verb == 'dead') and all
  if not complete and not held then return 'lease_lost' end
  if ARGV[a + 8] ~= '' then run.bytes = held and ARGV[a + 8] or run.bytes .. ARGV[a + 8] end
  if held and ARGV[a + 7] ~= '0' then totals.failed = totals.failed + ARGV[a + 7] end
  changed[id] = run
  if run.place == 'scheduled' and has(run.marks, RETRIED) then totals.retrying = totals.retrying - 1 end
  if complete then run.place, totals.delivered = 'completed', totals.delivered + 1
  elseif has(run.marks, CANCELLING) then run.place, totals.cancelled = 'cancelled', totals.cancelled + 1 -- nothing leads back
  elseif verb == 'dead' or verb == 'expired' then run.place, totals[verb] = verb, totals[verb] + 1
  else
    if verb == 'retry' then run.marks = bit.bor(run.marks, RETRIED) end
    if has(run.marks, RETRIED) then totals.retrying = totals.retrying + 1 end
    run.place, run.at = 'scheduled', ARGV[a + 4]
  end
  return run.place
end

local answers, same = {}, 0
for i = 1, #ids do answers[i] = settle(i, first + 9 * (i - 1)) if answers[i] == 'already' then same = same + 1 end end
repeated(same)
local drop, sets = ARGV[4] == '1', { completed = COMPLETED, cancelled = CANCELLED, expired = EXPIRED, dead = DEAD, scheduled = DUE }
local rows, gone, out, added = {}, {}, {}, {}
local kept, dead_kept = tonumber(gate[2] or 86400000), tonumber(gate[3] or 86400000)
for id, run in pairs(changed) do
  local keep = run.place == 'dead' and dead_kept or drop and (run.place == 'completed' or run.place == 'expired') and 0 or kept
  if run.place ~= run.was then
    out[run.was] = out[run.was] or {}
    table.insert(out[run.was], id)
    if run.place == 'scheduled' or keep > 0 then
      local set = added[run.place] or {}
      added[run.place], set[#set + 1], set[#set + 2] = set, run.place == 'scheduled' and run.at or NOW, id
    end
  end
  if run.place ~= 'scheduled' and run.place ~= 'active' then
    out.expiry = out.expiry or {}
    table.insert(out.expiry, id)
  end
  if keep > 0 or run.place == 'scheduled' or run.place == 'active' then rows[#rows + 1] = id rows[#rows + 1] = write_run(run) else gone[#gone + 1] = id end
end
if out.active then call('ZREM', ACTIVE, unpack(out.active)) end
if out.scheduled then call('ZREM', DUE, unpack(out.scheduled)) end
if out.expiry and call('EXISTS', EXPIRY) == 1 then call('ZREM', EXPIRY, unpack(out.expiry)) end
if #gone > 0 then call('HDEL', TASKS, unpack(gone)) call('HDEL', RUNS, unpack(gone)) end
if #rows > 0 then call('HSET', RUNS, unpack(rows)) end
for place, members in pairs(added) do
  call('ZADD', sets[place], unpack(members))
  if place == 'dead' then lower(step(now + tonumber(gate[3] or 86400000)))
  elseif place ~= 'scheduled' then
    local over = call('ZCARD', sets[place]) > tonumber(gate[4] or NEVER)
    lower(over and step(now) or step(now + tonumber(gate[2] or 86400000)))
  end
end
for counter, by in pairs(totals) do bump(counter, by) end
if full and out.active then local pull, push = ready() if pull then lower(push) ring(pull, push) end else ring_if_earlier(before) end
answers[#answers + 1] = now
return answers
