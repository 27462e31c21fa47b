-- Milliseconds since the beginning of 2026 by Redis's clock, or 0 beyond `most`: a wrong clock must not use up the
-- numbers that are derived from it.
local function since_2026(most)
  local now = redis.call('TIME')
  local elapsed = (tonumber(now[1]) - 1767225600) * 1000 + math.floor(tonumber(now[2]) / 1000)
  return elapsed > most and 0 or elapsed
end

-- The end of 2152: even 1,000 numbers per millisecond are exact in a double.
local MOST_MS = 4000000000000
