#!lua flags=no-writes,allow-stale
-- Where a group stands in a partition, whoever moved it. Creates nothing.
-- KEYS: stream
-- ARGV: group, id just before the committed offset or '' when there was no commit
-- Answer: 'none' (no commit and no group, or one that has not begun), 'commit' (the committed offset), 'at' and the id
--         of the lowest pending entry, or 'after' and the last delivered id.
-- Parts: group, ids
local stream, group, before = KEYS[1], ARGV[1], ARGV[2]
local nothing = before == '' and {'none'} or {'commit'}
if redis.call('TYPE', stream)['ok'] ~= 'stream' then
  return nothing
end
local facts = group_facts(stream, group)
if not facts then
  return nothing
end
local last = facts['last-delivered-id']

-- The lowest pending entry that is still there: what was trimmed or deleted must not pin the group.
local lowest
if facts['pending'] > 0 then
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
