-- Return the extent of a log: see `extent`, without the segments.
local function extent_of(stream, state_key)
  local state = redis.call('HMGET', state_key, 'b', 'o', 'l', 'h', 'x')
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  return {state[1], state[2], state[3], last and last[1] or false, state[4], state[5]}
end
