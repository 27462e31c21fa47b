#!lua flags=allow-oom
-- Prepare a member's reads of a partition: create the Redis group if missing, and claim the pending entries of earlier
-- members.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, id at which to create the group, maximum entries to claim per call
-- Reply: last delivered id, pending entries of the group, 1 if more must be claimed. Errors: FENCED, GONE.
-- Parts: group, members, partition
--
-- A partition has one owner, so other members with pending entries have lost it. Consumers of Redis programs are not in
-- the groups hash, so they keep theirs.
--
-- allow-oom: groups can read from a full Redis.
local stream, group, member = KEYS[1], ARGV[2], ARGV[3]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end

local facts = group_facts(stream, group)
if not facts then
  local made = redis.pcall('XGROUP', 'CREATE', stream, group, ARGV[4], 'MKSTREAM')
  if type(made) == 'table' and made.err then
    return redis.error_reply(made.err)
  end
  facts = group_facts(stream, group)
end

local left, members, mine = tonumber(ARGV[5]), {}, false
for _, other in ipairs(members_of(KEYS[3], group)) do
  if other == member then
    mine = true
    members[#members + 1] = other
  else
    local empty = false
    while left > 0 and not empty do
      local entries = redis.call('XPENDING', stream, group, '-', '+', math.min(left, 1000), other)
      local ids = {}
      for place, entry in ipairs(entries) do
        ids[place] = entry[1]
      end
      empty = #ids == 0
      if not empty then
        left = left - #ids
        -- JUSTID does not count as a delivery. This also removes trimmed entries from the pending ones.
        ids[#ids + 1] = 'JUSTID'
        redis.call('XCLAIM', stream, group, member, 0, unpack(ids))
      end
    end
    if empty then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, other)
    else
      members[#members + 1] = other
    end
  end
end
if not mine then
  members[#members + 1] = member
end
redis.call('HSET', KEYS[3], group, cjson.encode(members))
return {facts['last-delivered-id'], facts['pending'], #members > 1 and 1 or 0}
