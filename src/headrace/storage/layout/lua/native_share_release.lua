#!lua flags=allow-oom
-- Release everything that a member of a share group has, and then remove the member's consumer.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, maximum deliveries, maximum entries per call, idle milliseconds after which other
--       members without entries are removed as well, '1' if the group has a dead letter topic
-- Reply: number of released entries; 1 if more exist; ids and numbers of deliveries of entries that were given up
--         instead, because they reached the maximum. Errors: FENCED, GONE, WRONGTYPE.
-- Parts: partition, share
local stream, group, member = KEYS[1], ARGV[2], ARGV[3]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local most, spent = tonumber(ARGV[5]), {}
if not has_begun(redis.call('HGET', KEYS[3], group)) then
  return {0, 0, spent}
end
local pending, failed = pending_of(stream, group, '-', '+', most, member)
if not pending then
  return failed or {0, 0, spent}
end
release(stream, KEYS[3], group, pending, tonumber(ARGV[4]), spent, ARGV[7] == '1')
local released = #pending - #spent / 2
if #pending == most then
  return {released, 1, spent}
end

-- A broker that crashed did not remove its members.
local idle_of = {}
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local facts = facts_of(info)
  if facts['pending'] == 0 then
    idle_of[facts['name']] = facts['idle']
  end
end
local members = {}
for _, each in ipairs(members_of(KEYS[3], group)) do
  local idle = idle_of[each]
  if each == member or (idle and each ~= RELEASED and idle >= tonumber(ARGV[6])) then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, each)
  else
    members[#members + 1] = each
  end
end
redis.call('HSET', KEYS[3], group, cjson.encode(members))
return {released, 0, spent}
