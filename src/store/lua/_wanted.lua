-- Put after _lib.lua before the scripts that need it: what a queue wants at which instant.
-- Most sets are empty most of the time, and asking that is cheap.
local function filled(sets)
  local some, left = {}, call('EXISTS', unpack(sets))
  for _, set in ipairs(sets) do
    if left > #some and call('EXISTS', set) == 1 then some[#some + 1] = set end
  end
  return some
end
local function due_in(set, till, most) return call('ZRANGE', set, '-inf', till, 'BYSCORE', 'LIMIT', '0', most) end
-- Of those that ended: the oldest's instant, by how many they are too many, and the instant at which some are to go.
local function kept_in(set)
  local oldest = head(set)
  if not oldest then return nil, 0, NEVER end
  local over, goes = set ~= DEAD and call('ZCARD', set) - most_kept() or 0, step(oldest + keeps(set))
  return oldest, over, over > 0 and math.min(goes, step(now)) or goes
end
-- The instant at which the queue wants its next visit; NEVER = none. A queue still due comes behind those not visited since.
-- Lease and expiry: the first that ends. Goes: the first of those that ended.
local function wanted(push, may_end, lease, expiry, goes)
  local at = math.min(push and math.max(push, now) or NEVER, goes)
  if lease then at = math.min(at, lease > now and lease or may_end and now or now + 1000) end
  return expiry and math.min(at, math.max(expiry, now)) or at
end
