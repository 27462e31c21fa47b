#!lua flags=allow-oom
-- Extend a lock. A lock that expired stays lost, even if it is free: others may have made changes under it.
-- KEYS: lock
-- ARGV: token of the holder, time to live in ms
-- Reply: whether the lock is still held (1 or 0).
--
-- allow-oom: changes under a lock may free memory.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
