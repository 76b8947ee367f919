-- Put where a line --+ _filled asks for it, after _kept: what there is of what ended.
-- Most sets are empty most of the time, and asking that is cheap.
local function filled(sets, left) -- left: how many of them there are
  local some = {}
  for _, set in ipairs(sets) do
    if left > #some and call('EXISTS', set) == 1 then some[#some + 1] = set end
  end
  return some
end
-- Of those that ended: the oldest's instant, by how many they are too many, and the instant at which some are to go.
local function kept_in(set)
  local oldest = head(set)
  if not oldest then return nil, 0, NEVER end
  local over, goes = set ~= DEAD and call('ZCARD', set) - most_kept() or 0, step(oldest + keeps(set))
  return oldest, over, over > 0 and math.min(goes, step(now)) or goes
end
