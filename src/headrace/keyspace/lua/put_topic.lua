-- Create or replace a topic in the registry.
-- KEYS: topics, epoch
-- ARGV: fencing epoch, 'create' | 'replace', name, topic
-- Answer: 1, or 0 when a topic to be created is there already. Error: FENCED.
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if ARGV[2] == 'create' then
  return redis.call('HSETNX', KEYS[1], ARGV[3], ARGV[4])
end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
return 1
