#!lua flags=allow-oom
-- Begin a new epoch where a lock outside of Redis keeps other servers out.
-- KEYS: epoch
-- Answer: the epoch, a text.
--
-- allow-oom: a Redis that is full must not keep a server from starting that would trim.
redis.call('INCR', KEYS[1])
return redis.call('GET', KEYS[1])
