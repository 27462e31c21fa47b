#!lua flags=allow-oom
-- Give a lock back, unless it is somebody else's by now.
-- KEYS: lock, what says that somebody waits for it
-- ARGV: token of who held it
-- Answer: whether somebody waits (1 or 0); of one that is not held nobody is told.
--
-- What says so is for the holder: who has lost the lock leaves it.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return redis.call('DEL', KEYS[2])
