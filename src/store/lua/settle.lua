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
local mif, keep, most, rev = unpack(call('HMGET', GATE, 'mif', 'keep', 'keep_max', 'rev'))
local NOW, drop, first, kept, before = text(now), ARGV[4] == '1', 7 + 7 * ARGV[6], tonumber(keep or 86400000), nil
local full = mif and call('ZCARD', ACTIVE) >= tonumber(mif)
-- So many tasks were put there: the instant at which they go. It is in the agenda already if they came to others.
local function come_to(set, n, time_kept)
  local all = call('ZCARD', set)
  local over = set ~= DEAD and all > tonumber(most or NEVER)
  if over or all <= n then lower((math.floor((over and now or now + time_kept) / 10000) + 1) * 10000) end
end

-- Plain ends. A row that is as it was claimed tells all of its task but that it is still active, and that its removal tells.
local ids, was, ends, packed, at, n = {}, {}, {}, ARGV[5], 1, 0
while at <= #packed do
  n = n + 1
  ids[n], was[n], ends[n], at = struct.unpack('>Bc0c39I4c0', packed, at)
end
local raws, alike, answers, items, removed, torn = n > 0 and call('HMGET', RUNS, unpack(ids)), n > 0, { 0 }, {}, 0, 0
for i = 1, n do alike = alike and raws[i] == was[i] end
-- Those of consumers, who are shown their tasks. A record that is damaged or missing is for a look to tell.
local plain, heads = n > 0 and string.byte(was[1], 6) == PULL and 'plain' or 'done', {}
if plain == 'plain' then
--+ _fronts
  for from = 1, n, 8 do -- a few at a time: records are read whole
    for i, record in ipairs(call('HMGET', TASKS, unpack(ids, from, math.min(from + 7, n)))) do
      local front = record and head_of(record) or ''
      heads[from + i - 1] = front
      if front == '' then alike, was[from + i - 1] = false, '' end
    end
  end
end
if alike then removed = call('ZREM', ACTIVE, unpack(ids)) else call('ZREM', EXPIRY, '') end -- the first write
if alike and removed == n then
  answers[1] = n
  if call('EXISTS', EXPIRY) == 1 then call('ZREM', EXPIRY, unpack(ids)) end
  if kept <= 0 or drop then call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) else
    local rows, scores = {}, {}
    for i = 1, n do rows[2 * i - 1], rows[2 * i], scores[2 * i - 1], scores[2 * i] = ids[i], ends[i], NOW, ids[i] end
    call('HSET', RUNS, unpack(rows)) call('ZADD', COMPLETED, unpack(scores))
    come_to(COMPLETED, n, kept)
  end
  bump('delivered', n)
elseif n > 0 then
--+ _rows
  if alike then torn = n end
  for i = 1, n do local is = read_run(ends[i]) items[i] = { ids[i], is.uid, is.fence, plain, '0', '', is.done, '0', is.bytes } end
end
if first > 7 then
--+ _notes
  for i = 7, first - 1, 7 do note(rev, unpack(ARGV, i, i + 6)) end
end
for i = first, #ARGV, 9 do items[#items + 1] = { unpack(ARGV, i, i + 8) } end
if #items > 0 then
--+ _closely
end
if full and removed > 0 then
--+ _ready
  local pull, push = ready()
  if pull then lower(push) ring(pull, push) end
elseif before then
--+ _ready
--+ _earlier
  ring_if_earlier(before)
end
answers[#answers + 1] = now
for i = 1, #heads do answers[#answers + 1] = heads[i] end
return #items == 0 and #heads == 0 and now or answers
