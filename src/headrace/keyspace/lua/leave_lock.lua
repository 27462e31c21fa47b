#!lua flags=allow-oom
-- Give a lock back, unless it is somebody else's by now.
-- KEYS: lock
-- ARGV: token of who held it
-- Answer: OK.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return 'OK'
