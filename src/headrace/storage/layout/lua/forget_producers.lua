-- Forget producers that have been idle.
-- KEYS: producers, state
-- ARGV: fencing epoch, minimum time of the last use in ms
-- Reply: number of forgotten producers. Errors: FENCED, GONE.
-- Parts: partition
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local all = redis.call('HGETALL', KEYS[1])
local gone = 0
for place = 1, #all, 2 do
  local last_use = string.match(all[place + 1], '^%d+ (%d+)')
  if tonumber(last_use) < tonumber(ARGV[2]) then
    redis.call('HDEL', KEYS[1], all[place])
    gone = gone + 1
  end
end
return gone
