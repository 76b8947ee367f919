-- Put where a line --+ _clients asks for it: what clients ask for, and ask for again.
local function braked(at) return BOUND > 0 and math.max(BOUND, math.min(at, BOUND + 4000)) or at end -- the caller's idea of now, 2 s either way
local function repeated(n) if n > 0 then call('ZREM', DUE, '') bump('replays', n) end end -- writes, so that WAIT covers what it repeats
