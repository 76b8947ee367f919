-- Put where a line --+ _again asks for it, in `visit`: claims of which some are no first ones, or whose records are gone.
--+ _usual
--+ _rows
local of_rows, of_dues = {}, {}
for i = 1, n do
  local id, record, raw, row = ids[i], answer[2 * i + 2], raws[i] or '', nil
  local run = raw ~= '' and read_run(raw)
  if run and has(run.marks, RETRIED) then retrying = retrying - 1 end
  if not record then bump('ghosts', 1) call('HDEL', RUNS, id) else
    local uid = uid_of(id, record)
    if not run then row, raw = before_uid .. uid .. '\0\0', '' else -- a damaged one is none
      if run.uid ~= uid then -- left by other content
        run = { fence = run.fence, kind = PUSH, reclaims = 0, lapses = 0, marks = 0, claimed = 0, uid = uid, done = '', bytes = '' }
        raw = write_run(run)
      end
      run.fence, run.kind, run.claimed = run.fence + 1, kind, now
      row = write_run(run)
    end
    local r = 2 * claimed
    leases[r + 1], leases[r + 2], rows[r + 1], rows[r + 2] = ends, id, id, row
    claimed = claimed + 1
    answer[r + 3], answer[r + 4], of_dues[claimed], of_rows[claimed] = id, record, dues[i], raw
  end
end
for i = 1, claimed do answer[2 * claimed + 2 + i], answer[3 * claimed + 2 + i] = of_dues[i], of_rows[i] end
for i = 4 * claimed + 3, 2 * n + 2 do answer[i] = nil end
