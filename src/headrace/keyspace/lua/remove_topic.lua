#!lua flags=allow-oom
-- Take a topic out of the registry and note that its records are still to go; or strike that note out.
-- KEYS: topics, epoch, deleted
-- ARGV: fencing epoch, 'begin' | 'end', topic id, ['begin': name]
-- Answer: 1, or 0 when there was nothing to do. Error: FENCED.
--
-- allow-oom: deleting a topic is what makes room again.
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if ARGV[2] == 'end' then
  return redis.call('HDEL', KEYS[3], ARGV[3])
end
local topic = redis.call('HGET', KEYS[1], ARGV[4])
if not topic then
  return 0
end
-- Records without a topic would never be found again, should the server die between the two.
redis.call('HSET', KEYS[3], ARGV[3], topic)
return redis.call('HDEL', KEYS[1], ARGV[4])
