#!lua flags=allow-oom
-- Entries for a member of a Redis consumer group, as many as fit so many bytes.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, '>' for entries nobody was given yet or the id behind which to look among those
--       pending for the member, most entries, most bytes; for '>' also the group's last delivered id as the caller has
--       left it, and the id just before the first entry that the member was not given
-- Answer: entries (without fields where they were removed), the last few may be too large; 1 if there may be more.
--         Errors: FENCED, PASSED, NOGROUP, WRONGTYPE.
-- Parts: epoch, group, members, size
--
-- PASSED: the member has to enter again, since another broker has read for the group: the member's place was taken, or
-- entries were for a member that this caller has not been given. Both read for a moment while the partition and its
-- group change hands, and what one took and nobody got must not be left out by the other. What a Redis program in the
-- group was given is the program's.
--
-- What XREADGROUP gives is pending from then on and has to be answered, however large it is: so a few at a time.
local no = fenced(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local group, member, after, most, room = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

-- What a member has pending behind what the caller's member was given.
local function pending(each, to)
  return redis.pcall('XPENDING', KEYS[1], group, '(' .. ARGV[8], to, 1, each)
end

if after == '>' then
  local entered, last = false, nil
  for _, each in ipairs(members_of(KEYS[3], group)) do
    entered = entered or each == member
    local found = pending(each, '+')
    if found.err then
      return redis.error_reply(found.err)
    end
    if #found > 0 then
      -- XINFO tells of every group of the stream: it is asked only where something is pending, which a group that was
      -- set back has behind its last delivered id as well.
      last = last or group_facts(KEYS[1], group)['last-delivered-id']
      if last ~= ARGV[7] and #pending(each, last) > 0 then
        return redis.error_reply('PASSED entries behind ' .. ARGV[8] .. ' were taken for ' .. each)
      end
    end
  end
  if not entered then
    local found = pending(member, '+')
    return redis.error_reply(found.err or 'PASSED ' .. member .. ' is not among the members any more')
  end
end
local found, step, largest = {}, 1, 1
while #found < most and room > 0 do
  local asked = math.min(step, most - #found)
  local reply = redis.pcall('XREADGROUP', 'GROUP', group, member, 'COUNT', asked, 'STREAMS', KEYS[1], after)
  if reply and reply.err then
    return redis.error_reply(reply.err)
  end
  local entries = reply and reply[1][2] or {}
  for _, entry in ipairs(entries) do
    local size = size_of(entry)
    found[#found + 1], room, largest = entry, room - size, math.max(largest, size)
  end
  if #entries < asked then
    return {found, 0}
  end
  if after ~= '>' then
    after = found[#found][1]
  end
  step = math.max(1, math.min(2 * step, 4, math.floor(room / largest)))
end
return {found, 1}
