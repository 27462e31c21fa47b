#!lua flags=allow-oom
-- Release a lock that is still held.
-- KEYS: lock, mark that a broker waits for it
-- ARGV: token of the holder
-- Reply: whether a broker waits (1 or 0), 0 for a lost lock.
--
-- The mark belongs to the holder, so a broker that has lost the lock does not remove it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return redis.call('DEL', KEYS[2])
