-- Put where a line --+ _come_to asks for it, in `settle`.
--+ _usual
-- So many tasks were put there: the instant at which they go. It is in the agenda already if they came to others.
local function come_to(set, n, time_kept)
  local all = call('ZCARD', set)
  local over = set ~= DEAD and all > tonumber(most or NEVER)
  if over or all <= n then lower((math.floor((over and now or now + time_kept) / 10000) + 1) * 10000) end
end
