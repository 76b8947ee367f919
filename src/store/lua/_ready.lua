-- Put where a line --+ _ready asks for it: when a claim could take something.
local g = call('HMGET', GATE, 'open', 'paused', 'mif', 'rate_us', 'rev') -- 1 to 5; and if there is a rate: 6 tol_us  7 tat_us
if g[4] then g[6], g[7] = unpack(call('HMGET', GATE, 'tol_us', 'tat_us')) end
-- Holds: webhook -> until ms;  '!' .. webhook -> holds so far of a breaker that is open, for the processes that did not open it.
local any_holds -- as `ready` saw it: a queue without holds pays nothing
-- The first instant at which a claim could take something: for pull, for push; nil = never.
local function ready(due) -- due: the head of due, where it is known
  local at = due or call('ZRANGE', DUE, '0', '0', 'WITHSCORES')[2]
  if not at then return end
  at = math.max(at, g[2] or 0)
  if at >= NEVER then return end
  if g[3] and call('ZCARD', ACTIVE) >= tonumber(g[3]) then
    at = math.max(at, call('ZRANGE', ACTIVE, '0', '0', 'WITHSCORES')[2] or NEVER)
  end
  if g[4] then at = math.max(at, math.ceil(((g[7] or 0) - (g[6] or 0)) / 1000)) end
  if not g[1] or g[1] == '' then return at end
  if any_holds == nil then any_holds = call('EXISTS', HOLDS) == 1 end
  if not any_holds then return at, at end
  local free = NEVER
  for hook in string.gmatch(g[1], '%S+') do free = math.min(free, call('HGET', HOLDS, hook) or 0) end
  return at, math.max(at, free)
end
