-- Put where a line --+ _kept asks for it: how long what ended is kept.
local read_kept -- 1 keep  2 keep_dead  3 keep_max
local function kept()
  read_kept = read_kept or call('HMGET', GATE, 'keep', 'keep_dead', 'keep_max')
  return read_kept
end
-- Retention goes in steps of 10 s. A gate that was lost keeps everything for a day.
local function keeps(set) return (kept()[set == DEAD and 2 or 1] or 86400000) + 0 end
local function most_kept() return (kept()[3] or NEVER) + 0 end
local function step(at) return (math.floor(at / 10000) + 1) * 10000 end
