#!lua flags=allow-oom
-- Entries for a member of a Redis consumer group, as many as fit so many bytes.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, '>' for entries nobody was given yet or the id behind which to look among those
--       pending for the member, most entries, most bytes, bytes that the first may have, bytes and fields of the
--       largest record; for '>' also the group's last delivered id as the caller has left it, and the id just before
--       the first entry that the member was not given
-- Answer: entries (without fields where they were removed); 1 if there may be more; bytes of the first, where there are
--         none as it has too many. An entry that is larger than a record has its bytes in place of its fields.
--         Errors: FENCED, PASSED, NOGROUP, WRONGTYPE.
-- Parts: epoch, fitting, group, members
--
-- PASSED: the member has to enter again, since another broker has read for the group: the member's place was taken, or
-- entries were for a member that this caller has not been given. Both read for a moment while the partition and its
-- group change hands, and what one took and nobody got must not be left out by the other. What a Redis program in the
-- group was given is the program's.
--
-- What XREADGROUP gives is pending from then on and has to be answered, however large it is: so what is new is looked at
-- before it is taken. The first entry that is taken tells where the group is, should somebody have set it: then, and only
-- then, that one may be larger than was allowed.
local no = fenced(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local group, member, from, most, room = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local first, largest, fields, given_id, given_before = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], ARGV[11]

-- So many entries that are the member's: of those pending for it the ones behind an id, with '>' new ones.
local function give(after, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', group, member, 'COUNT', count, 'STREAMS', KEYS[1], after)
  return reply and (reply.err and reply or reply[1][2]) or {}
end

local function given(after, count)
  return give(after or from, count)
end

if from ~= '>' then
  local entries, more, wants = fitting({next = given}, most, room, first, largest, fields)
  if entries.err then
    return redis.error_reply(entries.err)
  end
  return {entries, more, wants}
end

-- What a member has pending behind what the caller's member was given.
local function pending(each, to)
  return redis.pcall('XPENDING', KEYS[1], group, '(' .. given_before, to, 1, each)
end

local members, entered, last = members_of(KEYS[3], group), false, nil
for _, each in ipairs(members) do
  entered = entered or each == member
  local found = pending(each, '+')
  if found.err then
    return redis.error_reply(found.err)
  end
  if #found > 0 then
    -- XINFO tells of every group of the stream: it is asked only where something is pending, which a group that was
    -- set back has behind its last delivered id as well.
    last = last or group_facts(KEYS[1], group)['last-delivered-id']
    if last ~= given_id and #pending(each, last) > 0 then
      return redis.error_reply('PASSED entries behind ' .. given_before .. ' were taken for ' .. each)
    end
  end
end
if not entered then
  local found = pending(member, '+')
  return redis.error_reply(found.err or 'PASSED ' .. member .. ' is not among the members any more')
end

if not last and has_others(redis.call('XINFO', 'CONSUMERS', KEYS[1], group), members) then
  -- A Redis program may have read on.
  last = group_facts(KEYS[1], group)['last-delivered-id']
end
local ahead = redis.call('XRANGE', KEYS[1], '(' .. (last or given_id), '+', 'COUNT', 1)[1]
local wants = ahead and weighed(ahead, largest, fields) or 0
if wants > first and ahead[2] ~= wants then
  return {{}, 1, wants}
end

local entries = give('>', 1)
if entries.err then
  return redis.error_reply(entries.err)
end
if #entries == 0 then
  return {entries, 0, 0}
end
room = room - weighed(entries[1], largest, fields)
if room <= 0 then
  return {entries, 1, 0}
end

local function following(after, count)
  return redis.call('XRANGE', KEYS[1], '(' .. (after or entries[1][1]), '+', 'COUNT', count)
end

local seen, more = fitting({next = following}, most - 1, room, room, largest, fields)
if #seen > 0 then
  for _, entry in ipairs(give('>', #seen)) do
    weighed(entry, largest, fields)
    entries[#entries + 1] = entry
  end
end
return {entries, more, 0}
