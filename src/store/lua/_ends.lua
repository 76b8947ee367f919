-- Put where a line --+ _ends asks for it: one task begins anew, or ends. After _rows and _kept.
local memory_full = false
-- Puts one task among those that ended, now: its score is when. Not kept: what expires while memory is full.
local function keep(id, set)
  local time_kept = keeps(set)
  if time_kept <= 0 or memory_full and set == EXPIRED then call('HDEL', TASKS, id) call('HDEL', RUNS, id) return end
  call('ZADD', set, text(now), id)
  local over = set ~= DEAD and call('ZCARD', set) > most_kept()
  lower(step(over and now or now + time_kept))
end
local function finish(id, set, counter)
  keep(id, set)
  call('ZREM', ACTIVE, id) call('ZREM', DUE, id) call('ZREM', EXPIRY, id)
  bump(counter, 1)
end
