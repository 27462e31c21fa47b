#!lua flags=allow-oom
-- Begin a new epoch while a lock outside of Redis keeps other servers out.
-- KEYS: epoch
-- Reply: the epoch (text).
--
-- allow-oom: a server that will trim must be able to start on a full Redis.
redis.call('INCR', KEYS[1])
return redis.call('GET', KEYS[1])
