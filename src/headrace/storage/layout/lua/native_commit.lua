#!lua flags=allow-oom
-- Commit: acknowledge the members' entries below the offset, and move the group if needed.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, id just before the committed offset, 'back' for a lower offset, 'reset' for any offset
--       (the group has no member, or the member sought back), '' otherwise, maximum entries per call
-- Reply: number of acknowledged entries, 1 if more exist, 1 if the group was moved. Errors: FENCED, GONE.
-- Parts: group, ids, members, partition
local stream, group, before = KEYS[1], ARGV[2], ARGV[3]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end

local facts = group_facts(stream, group)
if not facts then
  -- Without a stream, only the committed offset counts.
  local there = redis.call('EXISTS', stream)
  if there == 1 then
    redis.call('XGROUP', 'CREATE', stream, group, before)
  end
  return {0, 0, there}
end
local last = facts['last-delivered-id']

local left, acknowledged = tonumber(ARGV[5]), 0
local members = members_of(KEYS[3], group)
for _, member in ipairs(members) do
  local empty = before == '0-0'
  while not empty do
    if left <= 0 then
      return {acknowledged, 1, 0}
    end
    local entries = redis.call('XPENDING', stream, group, '-', before, 1000, member)
    local ids = {}
    for place, entry in ipairs(entries) do
      ids[place] = entry[1]
    end
    empty = #ids < 1000
    if #ids > 0 then
      left, acknowledged = left - #ids, acknowledged + redis.call('XACK', stream, group, unpack(ids))
    end
  end
end

local move = false
if less(last, before) then
  -- The offset is after the last delivered entry. Without entries in between, the group stays, so that Redis has its
  -- lag.
  local ms, sequence = parts_of(before)
  local gap = sequence == '18446744073709551615' and ms == parts_of(last)
  move = #redis.call('XRANGE', stream, '(' .. last, before, 'COUNT', 1) > 0
    or (not gap and #redis.call('XRANGE', stream, '(' .. before, '+', 'COUNT', 1) == 0)
elseif less(before, last) then
  if ARGV[4] == 'back' then
    move = true
  else
    -- Also move back if the first entry from there was delivered and is not pending, unless a Redis program may have
    -- acknowledged it.
    local entry = redis.call('XRANGE', stream, '(' .. before, '+', 'COUNT', 1)[1]
    move = entry and not less(last, entry[1])
      and #redis.call('XPENDING', stream, group, entry[1], entry[1], 1) == 0
      and (ARGV[4] == 'reset' or not has_others(redis.call('XINFO', 'CONSUMERS', stream, group), members))
  end
end
if move then
  redis.call('XGROUP', 'SETID', stream, group, before)
end
return {acknowledged, 0, move and 1 or 0}
