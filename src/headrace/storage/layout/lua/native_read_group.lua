#!lua flags=allow-oom
-- Read entries for a member of a Redis consumer group, up to a number of bytes.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, '>' for new entries or the id after which to read the member's pending ones,
--       maximum entries, maximum bytes, maximum bytes of the first, bytes and fields of the largest record; for '>'
--       also the group's last delivered id after the caller's last read, and the id just before the first entry that is
--       new to the member
-- Reply: entries (without fields if they were removed); 1 if more may exist; bytes of the first if it is too large. An
--         entry that is larger than a record has its bytes in place of its fields.
--         Errors: FENCED, PASSED, NOGROUP, WRONGTYPE.
-- Parts: epoch, fitting, group, members
--
-- PASSED: the member must enter again, because another broker has read for the group: it replaced the member, or read
-- entries that this caller has not delivered. Both may read briefly while the partition and its group move, and the
-- other one must not skip entries that one read and did not deliver. Entries of a Redis program in the group are its
-- own.
--
-- Entries of XREADGROUP become pending and must be returned, however large. So new entries are checked before. The
-- first read entry shows where the group is, in case that a program has moved it. Only then may it exceed the limit.
local no = fenced(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local group, member, from, most, room = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local first, largest, fields, given_id, given_before = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], ARGV[11]

-- Read the member's entries: pending ones after an id, or new ones with '>'.
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

-- Return a member's pending entries after those that the caller has delivered.
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
    -- XINFO reads all groups of the stream, so it is called only if entries are pending. A group that was set back also
    -- has such entries after its last delivered id.
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
  -- A Redis program may have read entries.
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
