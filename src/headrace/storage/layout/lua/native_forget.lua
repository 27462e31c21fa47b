#!lua flags=allow-oom
-- Remove the Redis group of a deleted group or offset, unless a Redis program uses it.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group
-- Reply: 1 if the group was removed. Errors: FENCED.
-- Parts: epoch, members
local stream, group = KEYS[1], ARGV[2]
local no = fenced(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local members = members_of(KEYS[3], group)
redis.call('HDEL', KEYS[3], group)
local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, group)
if consumers.err or has_others(consumers, members) then
  return 0
end
return redis.call('XGROUP', 'DESTROY', stream, group)
