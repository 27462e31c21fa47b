#!lua flags=allow-oom
-- Take the lease on the keyspace, if nobody has it, and begin a new epoch.
-- KEYS: lease, epoch
-- ARGV: token (one per server process), owner (for people), time to live in ms
-- Answer: {"taken", epoch} or {"held", token, owner, since in ms, renewals, remaining ms}, all texts.
--
-- allow-oom: a Redis that is full must not cost its server the lease, nor keep one from starting that would trim.
local held = redis.call('HMGET', KEYS[1], 'token', 'owner', 'since', 'renewals')
local remaining = redis.call('PTTL', KEYS[1])
-- A lease that never expires was not made here: nobody could ever take over from it.
if held[1] and remaining >= 0 then
  return {'held', held[1], held[2], held[3], held[4], string.format('%.0f', remaining)}
end
local now = redis.call('TIME')
local since = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('INCR', KEYS[2])
local epoch = redis.call('GET', KEYS[2])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', ARGV[2], 'since', since, 'renewals', '0', 'epoch', epoch)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'taken', epoch}
