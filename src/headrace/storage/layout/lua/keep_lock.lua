#!lua flags=allow-oom
-- Hold a lock for longer. One that is lost stays lost, also where nobody has it: others may have made changes under it.
-- KEYS: lock
-- ARGV: token of who held it, ms until it is free
-- Answer: whether it is theirs still (1 or 0).
--
-- allow-oom: what is done under a lock may be what makes room again.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
