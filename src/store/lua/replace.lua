-- replace: PUT. –, ended -> scheduled (a new life); scheduled -> scheduled; active -> scheduled, its attempt is on its own
-- KEYS  see _lib.lua
-- ARGV  bound: a delay counts from no earlier than this ms, and no later than 4 s after it; 0 = now   3 only create 0|1
--       4 id  5 version and flags  6 rest of the record  7 'in'|'at'  8 ms  9 expiry '-'|'in'|'at'  10 ms
-- Answers {'created'|'replaced', record, run, state, score} | {'exists'} (only create) | {'full'} | {'no_queue'}.
-- O(log m). Checks, then writes. Safe to run twice: it knows its own uid.
--+ _usual
--+ _rows
--+ _states
--+ _earlier
--+ _clients
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local base = braked(now + (us % 1000 > 0 and 1 or 0))
local id, run_at, expires, before = ARGV[4], tonumber(ARGV[8]), '', head(DUE) or NEVER
if ARGV[7] == 'in' then run_at = base + run_at end
if ARGV[9] ~= '-' then expires = struct.pack('>i8', (ARGV[9] == 'in' and base or 0) + ARGV[10]) end
local mine = ARGV[5] .. struct.pack('>i8i8', base, run_at) .. expires .. ARGV[6]
local old, state = call('HGET', TASKS, id), place(id)
if old and state and uid_of(id, old) == uid_of(id, mine) then
  repeated(1)
  return { 'created', unpack(view(id, old)) }
end
if ARGV[3] == '1' and old and state then return { 'exists' } end
local living = state == 'scheduled' or state == 'active'
local max = tonumber(call('HGET', GATE, 'max_size') or NEVER)
if not living and state ~= 'dead' and max < NEVER
  and call('ZCARD', DUE) + call('ZCARD', ACTIVE) + call('ZCARD', DEAD) >= max then return { 'full' } end

local run, full = read_run(call('HGET', RUNS, id)), call('HGET', GATE, 'mif')
full = full and state == 'active' and call('ZCARD', ACTIVE) >= tonumber(full)
call('HSET', TASKS, id, mine)
call('HDEL', RUNS, id)
if state == 'scheduled' and run and has(run.marks, RETRIED) then bump('retrying', -1) end
for _, set in ipairs({ ACTIVE, DEAD, COMPLETED, CANCELLED, EXPIRED, EXPIRY }) do call('ZREM', set, id) end
call('ZADD', DUE, math.max(base, run_at), id)
if expires ~= '' then call('ZADD', EXPIRY, expires_of(mine), id) lower(head(EXPIRY)) end
call('INCRBY', SEQ, 1)
if not living then bump('enqueued', 1) end
if full then
--+ _ready
--+ _ring
  local pull, push = ready()
  lower(push) ring(pull, push)
else ring_if_earlier(before) end
return { living and 'replaced' or 'created', unpack(view(id, mine)) }
