#!lua flags=allow-oom
-- Read a transactional ID, and fence older servers: their writes in flight are rejected.
-- KEYS: transaction
-- ARGV: fencing epoch
-- Reply: state as JSON ('' for none). Error: FENCED.
--
-- allow-oom: transactions must end on a full Redis.
-- Parts: group_fences
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' and kind ~= 'none' then
  return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' is a ' .. kind .. ', not the hash that Headrace keeps there')
end
local no = fenced(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
local state = redis.call('HGET', KEYS[1], 'state')
if state then
  return state
end
-- The fence of a missing ID lasts a minute; that of a removed one lasts longer.
if redis.call('PTTL', KEYS[1]) < 60000 then
  redis.call('PEXPIRE', KEYS[1], 60000)
end
return ''
