-- Put where a line --+ _holds asks for it, in `visit`: the holds go along with claims, and those that are over go.
local holds = call('HGETALL', HOLDS)
for i = 1, #holds, 2 do
  answer[#answer + 1], answer[#answer + 2] = holds[i], holds[i + 1]
  if string.byte(holds[i]) ~= 33 and (tonumber(holds[i + 1]) or 0) <= now then call('HDEL', HOLDS, holds[i]) end
end
