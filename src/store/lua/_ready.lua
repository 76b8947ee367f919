-- Put where a line --+ _ready asks for it: when a claim could take something, and who is told of it.
local read_gate -- 1 open  2 paused  3 mif  4 rate_us  5 rev  and if there is a rate: 6 tol_us  7 tat_us
local function gate()
  if not read_gate then
    read_gate = call('HMGET', GATE, 'open', 'paused', 'mif', 'rate_us', 'rev')
    if read_gate[4] then read_gate[6], read_gate[7] = unpack(call('HMGET', GATE, 'tol_us', 'tat_us')) end
  end
  return read_gate
end
-- Holds: webhook -> until ms;  '!' .. webhook -> holds so far of a breaker that is open, for the processes that did not open it.
local any_holds -- as `ready` saw it: a queue without holds pays nothing
-- The first instant at which a claim could take something: for pull, for push; nil = never.
local function ready(due) -- due: the head of due, where it is known
  due = due or head(DUE)
  if not due then return end
  local g = gate()
  local at = math.max(due, tonumber(g[2] or 0))
  if at >= NEVER then return end
  if g[3] and call('ZCARD', ACTIVE) >= tonumber(g[3]) then at = math.max(at, head(ACTIVE) or NEVER) end
  if g[4] then at = math.max(at, math.ceil((tonumber(g[7] or 0) - tonumber(g[6] or 0)) / 1000)) end
  if not g[1] or g[1] == '' then return at end
  local free = NEVER
  if any_holds == nil then any_holds = call('EXISTS', HOLDS) == 1 end
  if not any_holds then free = 0 else
    for hook in string.gmatch(g[1], '%S+') do free = math.min(free, tonumber(call('HGET', HOLDS, hook) or 0)) end
  end
  return at, math.max(at, free)
end
local function ring(pull, push)
  local pull_at = pull and text(pull) or '-'
  local push_at = push == pull and pull_at or push and text(push) or '-'
  call('PUBLISH', string.match(AGENDA, '^(.-):{') .. ':bell', QUEUE .. ' ' .. pull_at .. ' ' .. push_at)
end
