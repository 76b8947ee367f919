-- Put where a line --+ _fronts asks for it: records without their payloads.
--+ _has
-- A record without its payload; nothing where it is damaged or missing, which Rust tells from a good one.
local function front_of(record)
  local flags = string.byte(record, 2)
  local at = 19 + (has(flags, EXPIRES) and 8 or 0) + (has(flags, UID) and 16 or 0) + (has(flags, FINGERPRINT) and 16 or 0)
  if has(flags, OPTIONS) then at = at + 4 + struct.unpack('>I4', record, at) end
  return string.sub(record, 1, at - 1)
end
local function head_of(record)
  if #record >= 18 and string.byte(record, 2) % 16 == 0 then return string.sub(record, 1, 18) end -- mostly it has none of these
  local ok, front = pcall(front_of, record)
  return ok and front or ''
end
