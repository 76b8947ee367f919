-- Put where a line --+ _earlier asks for it, after _usual.
local function ring_if_earlier(before) -- before: head of due when the script began
  if (head(DUE) or NEVER) < before then
--+ _ready
--+ _ring
    local pull, push = ready()
    lower(push) ring(pull, push)
  end
end
