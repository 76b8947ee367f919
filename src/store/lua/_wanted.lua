-- Put after _lib.lua before the scripts that need it.
-- The instant at which the queue wants its next visit; NEVER = none. A queue still due comes behind those not visited since.
local function wanted(push, may_end)
  local at, lease, expiry = push and math.max(push, now) or NEVER, head(ACTIVE), head(EXPIRY)
  if lease then at = math.min(at, lease > now and lease or may_end and now or now + 1000) end
  if expiry then at = math.min(at, math.max(expiry, now)) end
  for _, set in ipairs(filled({ COMPLETED, CANCELLED, EXPIRED, DEAD })) do
    local oldest = head(set)
    if oldest then
      at = math.min(at, step(oldest + keeps(set)))
      if set ~= DEAD and call('ZCARD', set) > most_kept() then at = math.min(at, step(now)) end
    end
  end
  return at
end
