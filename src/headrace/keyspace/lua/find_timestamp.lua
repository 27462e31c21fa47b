#!lua flags=no-writes
-- Find the first batch whose time (`t`) reaches a given one, by halving. No batch before it has a record that late.
-- KEYS: stream, state
-- ARGV: timestamp in ms, or 'max' for the log's last `t`
-- Answer: the entry as XRANGE gives it, or nothing.
local state = redis.call('HMGET', KEYS[2], 'b', 'n', 't')
if not state[1] then
  return false
end
local wanted = tonumber(ARGV[1] == 'max' and state[3] or ARGV[1])
local low, high = tonumber(state[1]), tonumber(state[2]) - 1
local best = false
if wanted > tonumber(state[3]) then
  return best
end
while low <= high do
  local middle = low + math.floor((high - low) / 2)
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
