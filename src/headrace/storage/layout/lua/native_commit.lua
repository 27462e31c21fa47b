#!lua flags=allow-oom
-- A group commits: acknowledge what its members were given below the offset, and move the group where it must move.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, id just before the committed offset, 'back' if the commit goes back, 'reset' if it may go
--       anywhere (nobody is in the group, or the member has sought back), '' otherwise, most entries to acknowledge in
--       one go
-- Answer: how many were acknowledged, 1 if there are more, 1 if the group was moved. Errors: FENCED, GONE.
-- Parts: group, ids, members, partition
local stream, group, before = KEYS[1], ARGV[2], ARGV[3]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end

local facts = group_facts(stream, group)
if not facts then
  -- Where there is no stream either the position alone tells where the group stands.
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
  -- It passes what was delivered. Where nothing lies between, the group stays, and Redis can still tell its lag.
  local ms, sequence = parts_of(before)
  local gap = sequence == '18446744073709551615' and ms == parts_of(last)
  move = #redis.call('XRANGE', stream, '(' .. last, before, 'COUNT', 1) > 0
    or (not gap and #redis.call('XRANGE', stream, '(' .. before, '+', 'COUNT', 1) == 0)
elseif less(before, last) then
  if ARGV[4] == 'back' then
    move = true
  else
    -- Back, too, if the first entry from there on was delivered and is not pending, unless a Redis program may have
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
