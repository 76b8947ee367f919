-- Put where a line --+ _rows asks for it: records and run rows, as far as scripts read and write them.
-- A damaged record has a uid too, and a bad run row counts as none. A service-made id is 0x00 and its UUID, the uid until an edit.
local function uid_of(id, record)
  local flags, uid = string.byte(record, 2), string.sub(id, 2, 17)
  if has(flags, UID) then
    local at = has(flags, EXPIRES) and 27 or 19
    uid = string.sub(record, at, at + 15)
  end
  return #uid == 16 and uid or string.rep('\0', 16)
end
local function expires_of(record)
  if has(string.byte(record, 2), EXPIRES) and #record >= 26 then return (struct.unpack('>i8', record, 19)) end
end
local function read_run(raw)
  if not raw then return end
  local ok, version, fence, kind, reclaims, lapses, marks, claimed, uid, done, at = pcall(struct.unpack, '>BI4BI2I4Bi8c16Hc0', raw)
  if not ok or version ~= 1 then return end
  return { fence = fence, kind = kind, reclaims = reclaims, lapses = lapses, marks = marks, claimed = claimed,
    uid = uid, done = done, bytes = string.sub(raw, at) }
end
local function write_run(r)
  return struct.pack('>BI4BI2I4Bi8c16H', 1, r.fence, r.kind, math.min(r.reclaims, 65535), r.lapses, r.marks, r.claimed,
    r.uid, #r.done) .. r.done .. r.bytes
end
