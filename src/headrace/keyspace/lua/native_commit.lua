#!lua flags=allow-oom
-- A group commits: acknowledge what its members were given below the offset, and move the group where it must move.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, id just before the committed offset, 'back' if the commit goes back, 'reset' if it may go
--       anywhere (nobody is in the group, or the member has sought back), '' otherwise, most entries to acknowledge in
--       one go
-- Answer: how many were acknowledged, 1 if there are more, 1 if the group was moved. Errors: FENCED, GONE.
local stream, group, before = KEYS[1], ARGV[2], ARGV[3]
local epoch = redis.call('HGET', KEYS[2], 'e')
if not epoch then
  return redis.error_reply('GONE the partition does not exist')
end
if tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end

local last
if redis.call('EXISTS', stream) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for place = 1, #info, 2 do
      facts[info[place]] = info[place + 1]
    end
    if facts['name'] == group then
      last = facts['last-delivered-id']
    end
  end
end
if not last then
  redis.call('XGROUP', 'CREATE', stream, group, before, 'MKSTREAM')
  return {0, 0, 1}
end

local left, acknowledged = tonumber(ARGV[5]), 0
local known = redis.call('HGET', KEYS[3], group)
for _, member in ipairs(known and cjson.decode(known) or {}) do
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

-- Ids are longer than a double is exact: compare by length, then as text.
local function parts(id)
  return string.match(id, '^(%d+)-(%d+)$')
end
local function less(one, other)
  local ms, sequence = parts(one)
  local other_ms, other_sequence = parts(other)
  if ms ~= other_ms then
    return #ms < #other_ms or (#ms == #other_ms and ms < other_ms)
  end
  if #sequence ~= #other_sequence then
    return #sequence < #other_sequence
  end
  return sequence < other_sequence
end

local function others_in_group()
  local ours = {}
  for _, member in ipairs(known and cjson.decode(known) or {}) do
    ours[member] = true
  end
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    for place = 1, #info, 2 do
      if info[place] == 'name' and not ours[info[place + 1]] then
        return true
      end
    end
  end
  return false
end

local move = false
if less(last, before) then
  -- It passes what was delivered. Where nothing lies between, the group stays, and Redis can still tell its lag.
  local ms, sequence = parts(before)
  local gap = sequence == '18446744073709551615' and ms == parts(last)
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
      and (ARGV[4] == 'reset' or not others_in_group())
  end
end
if move then
  redis.call('XGROUP', 'SETID', stream, group, before)
end
return {acknowledged, 0, move and 1 or 0}
