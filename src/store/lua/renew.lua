-- renew: active -> active with a later lease end; may add webhooks that have the task, so that a crash repeats less
-- KEYS  see _lib.lua
-- ARGV  3 lease ms   then per task 4: id, uid, fence, webhooks that answered 2xx (w1,w2)
-- Answers a word per task: ok | cancelling | lease_lost; then now.   O(n log m). Runs at maxmemory.
--+ _rows
call('ZREM', EXPIRY, '')
local answers = {}
for i = 4, #ARGV, 4 do
  local id, run, word = ARGV[i], read_run(call('HGET', RUNS, ARGV[i])), 'lease_lost'
  if run and run.uid == ARGV[i + 1] and run.fence == tonumber(ARGV[i + 2]) and call('ZSCORE', ACTIVE, id) then
    call('ZADD', ACTIVE, 'XX', now + ARGV[3], id)
    word = has(run.marks, CANCELLING) and 'cancelling' or 'ok'
    local done = run.done
    for hook in string.gmatch(ARGV[i + 3], '[^,]+') do
      if not string.find(done, ',' .. hook .. ',', 1, true) then done = (done == '' and ',' or done) .. hook .. ',' end
    end
    if done ~= run.done then run.done = done call('HSET', RUNS, id, write_run(run)) end
  end
  answers[#answers + 1] = word
end
answers[#answers + 1] = now
return answers
