-- Put where a line --+ _ring asks for it: who waits for tasks is told when a claim could take something.
local function ring(pull, push)
  local pull_at = pull and text(pull) or '-'
  local push_at = push == pull and pull_at or push and text(push) or '-'
  call('PUBLISH', string.match(AGENDA, '^(.-):{') .. ':bell', QUEUE .. ' ' .. pull_at .. ' ' .. push_at)
end
