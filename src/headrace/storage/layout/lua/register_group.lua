#!lua flags=allow-oom
-- Add a group or a transactional ID to the set of all names, or remove it.
-- KEYS: groups or transactions, epoch
-- ARGV: fencing epoch, 'add' | 'remove', name
-- Reply: 1, or 0 if nothing changed. Error: FENCED.
-- Parts: epoch
--
-- allow-oom: consumers continue while Redis is too full for producers.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
if ARGV[2] == 'add' then
  return redis.call('SADD', KEYS[1], ARGV[3])
end
return redis.call('SREM', KEYS[1], ARGV[3])
