-- Reserve a block of producer ids.
-- KEYS: producer ids, epoch, view
-- ARGV: fencing epoch, number of ids
-- Reply: the first one (text). Error: FENCED.
--
-- Parts: clock, epoch
--
-- Ids must be unique: the second producer's batch would look like a duplicate of the first one's, and be acknowledged
-- but not stored. With a view, a failover may lose this counter, so ids also grow by 1,000 per millisecond since 2026.
-- This requires that the new primary's clock is not behind by more than the failover took. Without a view, a power
-- failure may lose the last ones.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
local first = tonumber(redis.call('GET', KEYS[1]) or '0')
if redis.call('EXISTS', KEYS[3]) == 1 then
  first = math.max(first, since_2026(MOST_MS) * 1000)
end
redis.call('SET', KEYS[1], string.format('%.0f', first + tonumber(ARGV[2])))
return string.format('%.0f', first)
