-- Parts: members, size
-- Consumer with the entries that were released: any member of a share group may acquire them. It is among the members
-- of a group that is a share group.
local RELEASED = '~released'
local MARK = cjson.encode(RELEASED)
-- Consumer with the entries that wait for their copies in the dead letter topic. No member acquires them.
local DEAD = '~dead'
-- Milliseconds of idle time of a released entry: XAUTOCLAIM of a program also takes it.
local LONG_IDLE = '9999999999'

-- Whether a share group has begun, by its members in the groups hash (false: none).
local function has_begun(members)
  return members and string.find(members, MARK, 1, true) ~= nil
end

local function not_begun(group)
  return redis.error_reply('GONE share group ' .. group .. ' has not begun in the partition')
end

-- Pending entries of a group by XPENDING with these arguments; nil if the group does not exist, and then an error reply
-- if it cannot be known.
local function pending_of(stream, group, ...)
  local found = redis.pcall('XPENDING', stream, group, ...)
  if not found.err then
    return found
  end
  return nil, string.sub(found.err, 1, 7) ~= 'NOGROUP' and redis.error_reply(found.err) or nil
end

-- Acknowledge entries of a group. ids: any number.
local function acknowledge(stream, group, ids)
  for place = 1, #ids, 1000 do
    redis.call('XACK', stream, group, unpack(ids, place, math.min(place + 999, #ids)))
  end
end

-- Claim entries for a consumer without a delivery. This also removes deleted entries from the pending ones.
-- idle: their idle time in milliseconds.
local function hand_over(stream, group, consumer, ids, idle)
  for place = 1, #ids, 1000 do
    local claim = {unpack(ids, place, math.min(place + 999, #ids))}
    claim[#claim + 1], claim[#claim + 2], claim[#claim + 3] = 'IDLE', idle, 'JUSTID'
    redis.call('XCLAIM', stream, group, consumer, 0, unpack(claim))
  end
end

-- Give up entries: acknowledge them, or if the group has a dead letter topic, keep them for their copies.
local function give_up(stream, groups, group, ids, dead_letters)
  if not dead_letters then
    acknowledge(stream, group, ids)
  elseif #ids > 0 then
    hand_over(stream, group, DEAD, ids, '0')
    local members = members_of(groups, group)
    for _, each in ipairs(members) do
      if each == DEAD then
        return
      end
    end
    -- It is no program.
    members[#members + 1] = DEAD
    redis.call('HSET', groups, group, cjson.encode(members))
  end
end

-- Release pending entries of XPENDING. Those that were delivered `limit` times are given up instead, and added with
-- their numbers of deliveries to `spent`.
local function release(stream, groups, group, pending, limit, spent, dead_letters)
  local again, over = {}, {}
  for _, entry in ipairs(pending) do
    if entry[4] >= limit then
      over[#over + 1] = entry[1]
      spent[#spent + 1], spent[#spent + 2] = entry[1], entry[4]
    else
      again[#again + 1] = entry[1]
    end
  end
  give_up(stream, groups, group, over, dead_letters)
  hand_over(stream, group, RELEASED, again, LONG_IDLE)
end
