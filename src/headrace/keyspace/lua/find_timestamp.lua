-- Find the first batch in which the log's largest timestamp reaches a given one, by halving.
-- KEYS: stream, state
-- ARGV: timestamp in ms, or 'max' for the log's largest
-- Answer: the entry as XRANGE gives it, or nothing.
local state = redis.call('HMGET', KEYS[2], 'b', 'n', 't')
if not state[1] or state[1] == state[2] then
  return false
end
local wanted = ARGV[1]
if wanted == 'max' then
  wanted = state[3]
end
wanted = tonumber(wanted)
if wanted > tonumber(state[3]) or state[3] == '-1' then
  return false
end
local low, high = tonumber(state[1]), tonumber(state[2]) - 1
local best = false
while low <= high do
  local middle = math.floor((low + high) / 2)
  local entry = redis.call('XRANGE', KEYS[1], string.format('%.0f', middle + 1) .. '-0', '+', 'COUNT', 1)[1]
  if not entry then
    high = middle - 1
  else
    local next_text, span = string.match(entry[1], '(%d+)-(%d+)')
    if tonumber(entry[2][4]) >= wanted then
      best = entry
      high = tonumber(next_text) - tonumber(span) - 1
    else
      low = tonumber(next_text)
    end
  end
end
return best
