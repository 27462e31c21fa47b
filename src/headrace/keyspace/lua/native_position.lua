#!lua flags=no-writes,allow-stale
-- Where a group stands in a partition, whoever moved it. Creates nothing.
-- KEYS: stream
-- ARGV: group, id just before the committed offset or '' when there was no commit
-- Answer: 'none' (no commit and no group, or one that has not begun), 'commit' (the committed offset), 'at' and the id
--         of the lowest pending entry, or 'after' and the last delivered id.
local stream, group, before = KEYS[1], ARGV[1], ARGV[2]
local nothing = before == '' and {'none'} or {'commit'}
if redis.call('TYPE', stream)['ok'] ~= 'stream' then
  return nothing
end
local last, pending
for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local facts = {}
  for place = 1, #info, 2 do
    facts[info[place]] = info[place + 1]
  end
  if facts['name'] == group then
    last, pending = facts['last-delivered-id'], facts['pending']
  end
end
if not last then
  return nothing
end

local function less(one, other)
  local ms, sequence = string.match(one, '^(%d+)-(%d+)$')
  local other_ms, other_sequence = string.match(other, '^(%d+)-(%d+)$')
  if ms ~= other_ms then
    return #ms < #other_ms or (#ms == #other_ms and ms < other_ms)
  end
  if #sequence ~= #other_sequence then
    return #sequence < #other_sequence
  end
  return sequence < other_sequence
end

-- The lowest pending entry that is still there: what was trimmed or deleted must not pin the group.
local lowest
if pending > 0 then
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  local from = first and first[1]
  while from and not lowest do
    local entries = redis.call('XPENDING', stream, group, from, '+', 100)
    for _, entry in ipairs(entries) do
      if #redis.call('XRANGE', stream, entry[1], entry[1]) > 0 then
        lowest = entry[1]
        break
      end
    end
    from = #entries == 100 and '(' .. entries[100][1] or nil
  end
end

if before == '' then
  if lowest then
    return {'at', lowest}
  end
  return last == '0-0' and {'none'} or {'after', last}
end
if lowest and not less(before, lowest) then
  return {'at', lowest}
end
if less(last, before) and #redis.call('XRANGE', stream, '(' .. last, before, 'COUNT', 1) > 0 then
  return {'after', last}
end
-- The first entry from the committed offset on: pending or not delivered yet, else somebody else has moved on.
local next = redis.call('XRANGE', stream, '(' .. before, '+', 'COUNT', 1)[1]
if not next or less(last, next[1]) or next[1] == lowest then
  return {'commit'}
end
return lowest and {'at', lowest} or {'after', last}
