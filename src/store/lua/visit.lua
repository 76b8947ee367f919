-- visit: all that is due in one queue. scheduled -> active (claims); leases that ended -> scheduled, or cancelled if marked;
--        expired -> expired; records kept long enough -> gone. It alone sets the queue's instant in the agenda exactly.
-- KEYS  see _lib.lua
-- ARGV  2 nothing later than this ms is taken, expires or is forgotten (brake)   4 most tasks   5 most payload bytes   6 lease ms
--       7 kind 0 push|1 pull   8 leases may end only if it is not later than this ms   9 memory is full 0|1: do not keep what expires
--       10 brief: leases, expiry and retention may wait until this ms, when the queue is visited again for them; 0 = they are looked at
-- Answers {now, pull instant, push instant, agenda instant, rev, claims, hold pairs if there are claims}; -1 = never. Claims are four lists:
--       ids | records | dues, or one for all | run rows before them, or none where all are first claims ('' = is one).
--       A claim's fence is one more than that row's.
-- O(n log m); pieces of 100 (retention 500). Runs at maxmemory, because its first write frees. Never sent twice.
--+ _rows
--+ _ready
--+ _wanted
call('ZREM', EXPIRY, '')
local may_end, most, upto = now <= tonumber(ARGV[8]), math.min(tonumber(ARGV[4]), 500), math.min(now, tonumber(ARGV[2]))
local kind, room, retrying, before = tonumber(ARGV[7]), tonumber(ARGV[5]), 0, nil -- before: head of due, if something comes back
local g, UPTO, lease, expiry, goes = gate(), text(upto), nil, nil, NEVER -- the first that ends; expires; and of those that ended, goes
local by = tonumber(ARGV[10])
local brief = by > now and by <= now + 1000 and not g[3] and not g[4] -- what only expires must not count towards a limit
if brief then goes = by else
--+ _upkeep
end
local pull, push = ready(0)
local at, ids, n, claimed, next_due = kind == PUSH and push or kind == PULL and pull, {}, 0, 0, nil
local of_ids, of_records, of_dues, of_rows = {}, {}, {}, {} -- what is answered of the claims
if at and at <= now and most > 0 then
  local us, tat, records = now * 1000, nil, {}
  if g[3] then most = math.min(most, tonumber(g[3]) - call('ZCARD', ACTIVE)) end -- ZCARD is the counter: no drift, exact over replicas
  if g[4] then
    tat = math.max(us, tonumber(g[7] or 0))
    most = math.min(most, math.floor((us + tonumber(g[6] or 0) - tat) / tonumber(g[4])) + 1)
  end
  -- one more than is taken: the head of what is left
  if most > 0 then ids = call('ZRANGE', DUE, '-inf', UPTO, 'BYSCORE', 'LIMIT', '0', string.format('%d', most + 1)) end
  local found = math.min(#ids, most)
  while n < found and room >= 0 do -- a few at a time: what there is no room for is read in vain
    for _, record in ipairs(call('HMGET', TASKS, unpack(ids, n + 1, math.min(n + 8, found)))) do
      room = room - #(record or '')
      if room < 0 and n > 0 then break end
      n = n + 1
      records[n] = record
    end
  end
  if n > 0 then
    local ask = { ids[1], n > 1 and ids[n] or ids[2], n > 1 and ids[n + 1] or nil } -- to print a score is dear; mostly the first is also the last
    local dues = call('ZMSCORE', DUE, unpack(ask))
    local alike = n == 1 or dues[1] == dues[2]
    next_due = ids[n + 1] and tonumber(dues[#ask])
    if not alike then dues = call('ZMSCORE', DUE, unpack(ids, 1, n)) end
    local raws, leases, rows, till = call('HMGET', RUNS, unpack(ids, 1, n)), {}, {}, now + ARGV[6]
    local ends, before_uid, after_uid = text(till), struct.pack('>BI4BI2I4Bi8', 1, 1, kind, 0, 0, 0, now), '\0\0' -- of a first row
    local byte, sub, again = string.byte, string.sub, false
    for i = 1, n do
      local id, record, raw, row = ids[i], records[i], raws[i] or '', nil
      local run = raw ~= '' and read_run(raw)
      if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
      if not record then bump('ghosts', 1) call('HDEL', RUNS, id) else
        local uid = byte(record, 2) == 0 and #id == 17 and sub(id, 2) or uid_of(id, record) -- mostly a plain record
        if not run then row, raw = before_uid .. uid .. after_uid, '' else -- none or damaged: all first rows are alike
          if run.uid ~= uid then -- left by other content
            run = { fence = run.fence, kind = PUSH, reclaims = 0, lapses = 0, marks = 0, claimed = 0, uid = uid, done = '', bytes = '' }
            raw = write_run(run)
          end
          run.fence, run.kind, run.claimed, again = run.fence + 1, kind, now, true
          row = write_run(run)
        end
        local r = 2 * claimed
        leases[r + 1], leases[r + 2], rows[r + 1], rows[r + 2] = ends, id, id, row
        claimed = claimed + 1
        of_ids[claimed], of_records[claimed], of_dues[claimed], of_rows[claimed] = id, record, dues[i], raw
      end
    end
    if alike then of_dues = { dues[1] } end
    if not again then of_rows = {} end
    if claimed > 0 then
      call('ZADD', ACTIVE, unpack(leases)) call('HSET', RUNS, unpack(rows))
      lease, g[7] = math.min(lease or NEVER, till), tat and string.format('%.0f', tat + claimed * g[4])
      if tat then call('HSET', GATE, 'tat_us', g[7]) end
    end
    call('ZREM', DUE, unpack(ids, 1, n))
  end
end
bump('retrying', retrying)

local answer = { now, -1, -1, -1, g[5] or '0', of_ids, of_records, of_dues, of_rows }
for i, hold in ipairs(any_holds and claimed > 0 and call('HGETALL', HOLDS) or {}) do answer[9 + i] = hold end
for i = 10, #answer, 2 do -- those that are over go
  if string.byte(answer[i]) ~= 33 and (tonumber(answer[i + 1]) or 0) <= now then call('HDEL', HOLDS, answer[i]) end
end
pull, push = ready(next_due)
answer[2], answer[3] = pull or -1, push or -1
local agenda = wanted(push, may_end, lease, expiry, goes)
if agenda < NEVER then answer[4] = agenda call('ZADD', AGENDA, text(agenda), QUEUE) else call('ZREM', AGENDA, QUEUE) end
if before and (head(DUE) or NEVER) < before then ring(pull, push) end
return answer
