-- list: a page of one state by score, then id; changes nothing
-- KEYS  see _lib.lua
-- ARGV  3 state   4 score to go on after ('' = from the start)   5 id to go on after   6 most   7 most bytes   8 whole records 0|1
-- Answers {'page', more 0|1, items} | {'no_queue'}; an item: {id, record or its head, run, score}.   O(log² m + page).
--+ _states
--+ _fronts
if call('HEXISTS', QUEUES, QUEUE) == 0 then return { 'no_queue' } end
local set, whole, room
for _, p in ipairs(places()) do if p[1] == ARGV[3] then set = p[2] end end
whole, room = ARGV[8] == '1', tonumber(ARGV[7])

local function after(a, b) -- byte order, as Redis sorts ids; Lua's own comparison follows the locale
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end
local start = 0
if ARGV[4] ~= '' then -- the first of that score behind the id, whether the id is still there or not
  local low, high = call('ZCOUNT', set, '-inf', '(' .. ARGV[4]), call('ZCOUNT', set, '-inf', ARGV[4])
  while low < high do
    local middle = math.floor((low + high) / 2)
    if after(call('ZRANGE', set, middle, middle)[1], ARGV[5]) then high = middle else low = middle + 1 end
  end
  start = low
end
local z, items = call('ZRANGE', set, start, start + ARGV[6] - 1, 'WITHSCORES'), {}
for i = 1, #z, 2 do
  local record, run = call('HGET', TASKS, z[i]) or '', call('HGET', RUNS, z[i]) or ''
  if not whole then record = head_of(record) end
  room = room - #record - #run
  if room < 0 and #items > 0 then return { 'page', 1, items } end
  items[#items + 1] = { z[i], record, run, z[i + 1] }
end
return { 'page', #z / 2 == tonumber(ARGV[6]) and 1 or 0, items }
