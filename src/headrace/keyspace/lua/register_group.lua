#!lua flags=allow-oom
-- Enter a group in the list of all groups, or take it out.
-- KEYS: groups, epoch
-- ARGV: fencing epoch, 'add' | 'remove', name
-- Answer: 1, or 0 when nothing changed. Error: FENCED.
--
-- allow-oom: those who read go on while Redis is too full for those who write.
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if ARGV[2] == 'add' then
  return redis.call('SADD', KEYS[1], ARGV[3])
end
return redis.call('SREM', KEYS[1], ARGV[3])
