-- Put where a line --+ _wanted asks for it: from what a queue has to do, the instant at which it wants its next visit; NEVER = none.
-- Push: see `ready`. Lease and expiry: the first that ends. Goes: the first of those that ended. A queue still due comes behind those
-- not visited since.
local agenda = push and (push > now and push or now) or NEVER
if goes < agenda then agenda = goes end
if lease then
  local ends = lease > now and lease or may_end and now or now + 1000
  if ends < agenda then agenda = ends end
end
if expiry then agenda = math.min(agenda, math.max(expiry, now)) end
