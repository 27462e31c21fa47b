#!lua flags=allow-oom
-- Enter a group in the list of all groups, or take it out.
-- KEYS: groups, epoch
-- ARGV: fencing epoch, 'add' | 'remove', name
-- Answer: 1, or 0 when nothing changed. Error: FENCED.
-- Parts: epoch
--
-- allow-oom: those who read go on while Redis is too full for those who write.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
if ARGV[2] == 'add' then
  return redis.call('SADD', KEYS[1], ARGV[3])
end
return redis.call('SREM', KEYS[1], ARGV[3])
