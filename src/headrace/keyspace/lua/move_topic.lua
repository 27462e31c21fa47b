#!lua flags=allow-oom
-- Take a topic from one virtual cluster's registry to another's. Its records stay where they are.
-- KEYS: topics it is among, topics to be among, epoch
-- ARGV: fencing epoch, name
-- Answer: 1; 0 when it is not there; -1 when the other has one of that name. Error: FENCED.
--
-- allow-oom: nothing becomes more by it.
local epoch = redis.call('GET', KEYS[3])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
local topic = redis.call('HGET', KEYS[1], ARGV[2])
if not topic then
  return 0
end
if redis.call('HSETNX', KEYS[2], ARGV[2], topic) == 0 then
  return -1
end
redis.call('HDEL', KEYS[1], ARGV[2])
return 1
