-- Take a block of producer ids.
-- KEYS: producer ids, epoch, view
-- ARGV: fencing epoch, how many
-- Answer: the first of them (text). Error: FENCED.
--
-- Parts: clock, epoch
--
-- An id is not to be given twice: two producers of one id would be taken for one, and a batch of the second for a repeated
-- one of the first, which is acknowledged and not stored. Where there is a view a failover may have lost how many were
-- given out, so ids are also a thousand for each millisecond since 2026. That holds as long as the new primary's clock is
-- not behind the old one's by more than the failover took. Where there is none, a loss of power may lose the last ones.
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
