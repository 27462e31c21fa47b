#!lua flags=allow-oom
-- Give a lock back, unless it is somebody else's by now.
-- KEYS: lock, what says that somebody waits for it
-- ARGV: token of who held it
-- Answer: whether somebody waits (1 or 0).
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return redis.call('DEL', KEYS[2])
