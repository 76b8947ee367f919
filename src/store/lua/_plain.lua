-- Put after _fronts.lua before settle: its plain ends, see there.
-- Their ids, run rows as claimed, run rows as they end, and number.
local function read_plain(packed)
  local ids, was, ends, at, n = {}, {}, {}, 1, 0
  while at <= #packed do
    n = n + 1
    ids[n], was[n], ends[n], at = struct.unpack('>Bc0c39I4c0', packed, at)
  end
  return ids, was, ends, n
end
-- The heads of their records, '' for one that is damaged or missing; a few at a time, as records are read whole.
local function heads_of(ids)
  local heads = {}
  for from = 1, #ids, 8 do
    for _, record in ipairs(call('HMGET', TASKS, unpack(ids, from, math.min(from + 7, #ids)))) do
      heads[#heads + 1] = record and head_of(record) or ''
    end
  end
  return heads
end
