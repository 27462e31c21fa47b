#!lua flags=allow-oom
-- Create the Redis group of a share group at an id, in place of an earlier one.
-- KEYS: stream, state
-- ARGV: fencing epoch, group, id
-- Reply: OK. Errors: FENCED, GONE, WRONGTYPE.
-- Parts: partition
--
-- XGROUP SETID would keep the pending entries. After it, XREADGROUP takes them from their consumers, and their numbers
-- of deliveries begin at 1.
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local made = redis.pcall('XGROUP', 'DESTROY', KEYS[1], ARGV[2])
if type(made) == 'number' then
  made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], ARGV[3])
else
  made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], ARGV[3], 'MKSTREAM')
end
return made.err and redis.error_reply(made.err) or redis.status_reply('OK')
