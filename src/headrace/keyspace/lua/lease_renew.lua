#!lua flags=allow-oom
-- Keep the lease.
-- KEYS: lease, epoch
-- ARGV: token, owner, epoch, time to live in ms
-- Answer: {"kept"}, or {"lost", present epoch, owner}, empty texts where there is no other.
--
-- The epoch decides: everyone who takes the lease raises it. A lease that expired and was taken by nobody, as when
-- Redis was away for a while, is made again.
--
-- allow-oom: a Redis that is full must not cost its server the lease, nor keep one from starting that would trim.
local epoch = redis.call('GET', KEYS[2])
local held = redis.call('HMGET', KEYS[1], 'token', 'owner', 'since')
if epoch ~= ARGV[3] or (held[1] and held[1] ~= ARGV[1]) then
  return {'lost', epoch or '', held[1] ~= ARGV[1] and held[2] or ''}
end
if not held[1] then
  local now = redis.call('TIME')
  local since = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', ARGV[2], 'since', since, 'epoch', epoch)
end
redis.call('HINCRBY', KEYS[1], 'renewals', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {'kept'}
