#!lua flags=no-writes,allow-stale
-- Return where a group continues in a partition, also after a Redis program moved it. Creates nothing.
-- KEYS: stream
-- ARGV: group, id just before the committed offset or '' without a commit, id from which to search pending entries or
--       '-'
-- Reply: 'none' (no commit, and no group or an unused one), 'commit' (the committed offset), 'at' and the id of the
--         lowest pending entry, 'after' and the last delivered id, or 'more' and the id for the next call, if many
--         pending entries were deleted.
-- Parts: group, ids, size
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

-- The lowest pending entry that still exists: removed entries must not hold the group. Looking up the next pending and
-- the next existing entry in turn skips runs of either.
local lowest
if facts['pending'] > 0 then
  local steps, room = 250, 4194304
  local entry = redis.call('XRANGE', stream, ARGV[3], '+', 'COUNT', 1)[1]
  while entry and not lowest do
    local pending = redis.call('XPENDING', stream, group, entry[1], '+', 1)[1]
    if pending and pending[1] == entry[1] then
      lowest = entry[1]
    else
      steps, room = steps - 1, room - size_of(entry)
      entry = pending and redis.call('XRANGE', stream, pending[1], '+', 'COUNT', 1)[1]
      if entry and (steps == 0 or room < 0) then
        return {'more', entry[1]}
      end
    end
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
-- If the first entry after the committed offset is neither pending nor undelivered, a Redis program has read it.
local next = redis.call('XRANGE', stream, '(' .. before, '+', 'COUNT', 1)[1]
if not next or less(last, next[1]) or next[1] == lowest then
  return {'commit'}
end
return lowest and {'at', lowest} or {'after', last}
