-- Put where a line --+ _usual asks for it: what all scripts use but those that must be cheap.
--+ _has
local function head(set)
  local at = call('ZRANGE', set, '0', '0', 'WITHSCORES')[2]
  return at and at + 0
end
local function lower(at) if at then call('ZADD', AGENDA, 'LT', text(at), QUEUE) end end -- too early costs a visit, too late is a bug
local function bump(counter, by) if by ~= 0 then call('HINCRBY', TOTALS, counter, string.format('%d', by)) end end
