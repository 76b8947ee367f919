-- settle: active -> completed | scheduled (retry, release) | dead | expired | cancelled (if marked); up to 500 tasks
-- A 2xx for a living task counts from anyone under its uid; only the current fence moves a task backwards.
-- KEYS  see _lib.lua
-- ARGV  numbers: memory is full 0|1: what completes or expires is not kept 1 | number of notes h 2
--       3 plain ends, packed: first claims that are done (push) or acked (pull), each as length 1, id | run row as it was claimed 39
--       then per plain end 1: run row as it ends (Lua hashes each byte that it is given)   then h x (webhook, rev, held until ms, holds of its breaker, last success ms,
--       last failure ms.us, failures since), 0 or '' = nothing of it, then per other task 9: id, uid, fence, verb, at ms,
--       about (w1,w2), won (w1,w2), failed calls, Rust's bytes
--       verb: done | retry | release | dead | expired | ack (pull).   about: webhooks that still want it, or gave up
-- Answers now alone, if all were plain ends and are completed. Or the number of plain ends if they are completed, or else 0; then a word
--       for each task that this does not tell of: completed | scheduled | dead | expired | cancelled | lease_lost | gone | late |
--       already | unlike (a plain ack of what is not as claimed: no effect); then now; then a head of a record for each plain ack.
-- O(n log m). Runs at maxmemory, because its first write frees.
local drop, notes = struct.unpack('>BI2', ARGV[1], MORE)
local mif, keep, most = unpack(call('HMGET', GATE, 'mif', 'keep', 'keep_max'))
local NOW, kept, before = text(now), keep and keep + 0 or 86400000, nil
local full = mif and call('ZCARD', ACTIVE) >= tonumber(mif)
drop = drop == 1

-- Plain ends. A row that is as it was claimed tells all of its task but that it is still active, and that its removal tells.
local packed, at, n, take, ids, was, rows, scores = ARGV[3], 1, 0, struct.unpack, {}, {}, { '', '' }, { '', '' }
while at <= #packed do
  local id, from
  n, id, from, at = n + 1, take('>Bc0c39', packed, at)
  ids[n], was[n], rows[2 * n - 1], rows[2 * n], scores[2 * n - 1], scores[2 * n] = id, from, id, ARGV[3 + n], NOW, id
end
local first = 4 + n + 7 * notes -- of the others
local raws, alike, answers, items, removed, torn = n > 0 and call('HMGET', RUNS, unpack(ids)), n > 0, nil, nil, 0, 0
for i = 1, n do alike = alike and raws[i] == was[i] end
-- Those of consumers, who are shown their tasks. A record that is damaged or missing is for a look to tell.
local plain, heads = 'done', nil
if n > 0 and string.byte(was[1], 6) == PULL then
--+ _fronts
  plain, heads = 'plain', {}
  for from = 1, n, 8 do -- a few at a time: records are read whole
    for i, record in ipairs(call('HMGET', TASKS, unpack(ids, from, math.min(from + 7, n)))) do
      local front = record and head_of(record) or ''
      heads[from + i - 1] = front
      if front == '' then alike, was[from + i - 1] = false, '' end
    end
  end
end
if alike then removed = call('ZREM', ACTIVE, unpack(ids)) else call('ZREM', EXPIRY, '') end -- the first write
local done = alike and removed == n -- all plain ends
if done then
  if call('EXISTS', EXPIRY) == 1 then call('ZREM', EXPIRY, unpack(ids)) end
  if kept <= 0 or drop then call('HDEL', TASKS, unpack(ids)) call('HDEL', RUNS, unpack(ids)) else
    call('HSET', RUNS, unpack(rows)) call('ZADD', COMPLETED, unpack(scores))
    local all = call('ZCARD', COMPLETED)
    if all <= n or all > (most and most + 0 or NEVER) then
--+ _come_to
      come_to(COMPLETED, n, kept)
    end
  end
  call('HINCRBY', TOTALS, 'delivered', n == 1 and '1' or string.format('%d', n))
end
if notes > 0 then
--+ _notes
  for i = 4 + n, first - 1, 7 do note(unpack(ARGV, i, i + 6)) end
end
if n > 0 and not done or first <= #ARGV then
--+ _closely
end
if full and removed > 0 then
--+ _usual
--+ _ready
--+ _ring
  local pull, push = ready()
  if pull then lower(push) ring(pull, push) end
elseif before then
--+ _usual
--+ _earlier
  ring_if_earlier(before)
end
if not answers and not heads then return now end
answers = answers or { n }
answers[#answers + 1] = now
for i = 1, heads and n or 0 do answers[#answers + 1] = heads[i] end
return answers
