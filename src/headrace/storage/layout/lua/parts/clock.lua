-- Milliseconds since the beginning of 2026, by the clock of this Redis; 0 beyond `most`: a clock that is wrong must not use
-- up the numbers that are made of them.
local function since_2026(most)
  local now = redis.call('TIME')
  local elapsed = (tonumber(now[1]) - 1767225600) * 1000 + math.floor(tonumber(now[2]) / 1000)
  return elapsed > most and 0 or elapsed
end

-- The end of 2152: a thousand for each of them is still an exact number to every client.
local MOST_MS = 4000000000000
