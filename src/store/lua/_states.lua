-- Put where a line --+ _states asks for it.
-- The states and their sets; made only when somebody asks.
local function places()
  return { { 'scheduled', DUE }, { 'active', ACTIVE }, { 'completed', COMPLETED }, { 'dead', DEAD }, { 'cancelled', CANCELLED },
    { 'expired', EXPIRED } }
end
-- Where an id stands: {state, score}, or nil.
local function place(id)
  for _, p in ipairs(places()) do
    local score = call('ZSCORE', p[2], id)
    if score then return p[1], score end
  end
end
-- A task as Rust reads it: {record, run, state, score}.
local function view(id, record)
  local state, score = place(id)
  if state then return { record, call('HGET', RUNS, id) or '', state, score } end
end
