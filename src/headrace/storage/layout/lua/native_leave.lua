#!lua flags=allow-oom
-- Remove the consumer of a member that has left, if nothing is pending for it.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member
-- Reply: 1 if it was removed; 0 if its entries wait for the partition's next owner. Errors: FENCED.
-- Parts: epoch, members
local stream, group, member = KEYS[1], ARGV[2], ARGV[3]
local no = fenced(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local members, found = {}, false
for _, other in ipairs(members_of(KEYS[3], group)) do
  if other == member then
    found = true
  else
    members[#members + 1] = other
  end
end
if not found then
  return 0
end
local entries = redis.pcall('XPENDING', stream, group, '-', '+', 1, member)
if not entries.err then
  if #entries > 0 then
    return 0
  end
  redis.call('XGROUP', 'DELCONSUMER', stream, group, member)
end
if #members == 0 then
  redis.call('HDEL', KEYS[3], group)
else
  redis.call('HSET', KEYS[3], group, cjson.encode(members))
end
return 1
