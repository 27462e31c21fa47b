-- Create, replace or remove a topic in the registry.
-- KEYS: topics, epoch
-- ARGV: fencing epoch, 'create' | 'replace' | 'remove', name, [topic]
-- Answer: 1, or 0 when a topic to be created is there already. Error: FENCED.
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if ARGV[2] == 'create' then
  return redis.call('HSETNX', KEYS[1], ARGV[3], ARGV[4])
end
if ARGV[2] == 'replace' then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  return 1
end
return redis.call('HDEL', KEYS[1], ARGV[3])
