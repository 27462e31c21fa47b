-- Forget producers that were not heard of for long.
-- KEYS: producers
-- ARGV: time in ms; those last used before it go
-- Answer: how many went.
local all = redis.call('HGETALL', KEYS[1])
local gone = 0
for place = 1, #all, 2 do
  local last_use = string.match(all[place + 1], '^%S+ (%S+)')
  if tonumber(last_use) < tonumber(ARGV[1]) then
    redis.call('HDEL', KEYS[1], all[place])
    gone = gone + 1
  end
end
return gone
