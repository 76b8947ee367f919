-- Put where a line --+ _wanted asks for it: what a queue wants at which instant.
-- The instant at which the queue wants its next visit; NEVER = none. A queue still due comes behind those not visited since.
-- Lease and expiry: the first that ends. Goes: the first of those that ended.
local function wanted(push, may_end, lease, expiry, goes)
  local at = math.min(push and math.max(push, now) or NEVER, goes)
  if lease then at = math.min(at, lease > now and lease or may_end and now or now + 1000) end
  return expiry and math.min(at, math.max(expiry, now)) or at
end
