#!lua flags=allow-oom
-- Begin a share group in a partition: create its Redis group if missing, and allow members to acquire.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, id at which to create the Redis group, 'again' to create it in place of an earlier one
-- Reply: OK. Errors: FENCED, GONE, WRONGTYPE.
-- Parts: partition, share
--
-- XGROUP SETID would keep the pending entries. After it, XREADGROUP takes them from their consumers, and their numbers
-- of deliveries begin at 1.
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local group = ARGV[2]
if ARGV[4] == 'again' and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.pcall('XGROUP', 'DESTROY', KEYS[1], group)
end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], group, ARGV[3], 'MKSTREAM')
if made.err and string.sub(made.err, 1, 9) ~= 'BUSYGROUP' then
  return redis.error_reply(made.err)
end
if not has_begun(redis.call('HGET', KEYS[3], group)) then
  local members = members_of(KEYS[3], group)
  members[#members + 1] = RELEASED
  redis.call('HSET', KEYS[3], group, cjson.encode(members))
end
return redis.status_reply('OK')
