-- Put where a line --+ _rows asks for it: records and run rows, as far as scripts read and write them.
-- A task without a run row is due when its record says, at `run_at` or when it was created: scores are dear to print, so `visit` does
-- not ask for them. Whoever schedules a task for another instant gives it a row.
-- A bad run row counts as none.
--+ _has
--+ _uid
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
local function new_run(id, record)
  return { fence = 0, kind = PUSH, reclaims = 0, lapses = 0, marks = 0, claimed = now, uid = uid_of(id, record),
    done = '', bytes = '' }
end
local function write_run(r)
  return struct.pack('>BI4BI2I4Bi8c16H', 1, r.fence, r.kind, math.min(r.reclaims, 65535), r.lapses, r.marks, r.claimed,
    r.uid, #r.done) .. r.done .. r.bytes
end
