#!lua flags=allow-oom
-- Replace the state of a transactional ID, or remove it.
-- KEYS: transaction
-- ARGV: fencing epoch, state as JSON ('' removes it)
-- Reply: OK. Error: FENCED.
--
-- allow-oom: transactions must end on a full Redis.
-- Parts: group_fences
local no = fenced(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
if ARGV[2] == '' then
  -- The fence lasts an hour, as that of a group.
  redis.call('HDEL', KEYS[1], 'state')
  redis.call('HSET', KEYS[1], 'e', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], 3600000)
else
  redis.call('HSET', KEYS[1], 'e', ARGV[1], 'state', ARGV[2])
  redis.call('PERSIST', KEYS[1])
end
return 'OK'
