-- Put where a line --+ _uid asks for it: which content a record is.
-- A damaged one has a uid too. A service-made id is 0x00 and its UUID, the uid until an edit.
local byte, sub = string.byte, string.sub
local function uid_of(id, record)
  local flags, uid = byte(record, 2), nil
  if not flags or flags % (2 * UID) < UID then uid = sub(id, 2, 17) else
    local at = flags % (2 * EXPIRES) < EXPIRES and 19 or 27
    uid = sub(record, at, at + 15)
  end
  return #uid == 16 and uid or string.rep('\0', 16)
end
