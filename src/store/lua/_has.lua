-- Put where a line --+ _has asks for it.
local function has(bits, flag) return bit.band(bits or 0, flag) ~= 0 end
