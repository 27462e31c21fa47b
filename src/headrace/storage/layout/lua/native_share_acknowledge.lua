#!lua flags=allow-oom
-- Acknowledge entries of a member of a share group: all of them, or none if the member does not have them all.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, maximum deliveries, '1' if the group has a dead letter topic, number of single
--       entries among the following; then for each single entry 'done', 'reject', 'release', 'renew' or 'gap', and its id; then for each run of neighbors also its last id and
--       the number of its entries. The member need not have the entries of gaps.
-- Reply: 0 if nothing changed, otherwise 1, and ids and numbers of deliveries of entries that were given up instead of
--         released, because they reached the maximum. Errors: FENCED, GONE, NOGROUP, WRONGTYPE.
-- Parts: group, ids, partition, share
--
-- XACK would acknowledge entries of other consumers, too. Entries below all pending ones are done already: repeated
-- acknowledgements of them change nothing.
local stream, group, member, limit, singles = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6])
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
if not has_begun(redis.call('HGET', KEYS[3], group)) then
  return not_begun(group)
end
-- Entries of programs rarely have neighboring ids. Above this number, one call finds them all.
local MANY = 8
-- More than a member can have.
local MOST = 1000000

-- Return the pending entries of the member, or an error.
local function pending(first, last, most)
  return redis.pcall('XPENDING', stream, group, first, last, most, member)
end

local lowest, last_delivered
-- Whether all entries up to an id are done.
local function is_done(id)
  if not last_delivered then
    lowest = (redis.call('XPENDING', stream, group, '-', '+', 1)[1] or {})[1]
    last_delivered = lowest or group_facts(stream, group)['last-delivered-id']
  end
  return less(id, last_delivered) or (not lowest and id == last_delivered)
end

local known = {}
if singles > MANY then
  local found = pending(ARGV[8], ARGV[6 + 2 * singles], MOST)
  if found.err then
    return redis.error_reply(found.err)
  end
  for _, entry in ipairs(found) do
    known[entry[1]] = entry
  end
end

local done, rejected, again, renewed, spent = {}, {}, {}, {}, {}
local dead_letters = ARGV[5] == '1'
local function take(kind, entry)
  if kind == 'done' or kind == 'gap' then
    done[#done + 1] = entry[1]
  elseif kind == 'reject' then
    rejected[#rejected + 1] = entry[1]
  elseif kind == 'release' then
    again[#again + 1] = entry
  else
    renewed[#renewed + 1] = entry[1]
  end
end

for place = 7, 6 + 2 * singles, 2 do
  local id = ARGV[place + 1]
  local entry = known[id]
  if not entry and singles <= MANY then
    local found = pending(id, id, 1)
    if found.err then
      return redis.error_reply(found.err)
    end
    entry = found[1]
  end
  if entry then
    take(ARGV[place], entry)
  elseif ARGV[place] ~= 'gap' and not is_done(id) then
    return {0, spent}
  end
end
for place = 7 + 2 * singles, #ARGV, 4 do
  local last, want = ARGV[place + 2], tonumber(ARGV[place + 3])
  local found = pending(ARGV[place + 1], last, math.min(want, MOST) + 1)
  if found.err then
    return redis.error_reply(found.err)
  end
  if #found ~= want and ARGV[place] ~= 'gap' and (#found > 0 or not is_done(last)) then
    return {0, spent}
  end
  for _, entry in ipairs(found) do
    take(ARGV[place], entry)
  end
end

acknowledge(stream, group, done)
give_up(stream, KEYS[3], group, rejected, dead_letters)
hand_over(stream, group, member, renewed, '0')
release(stream, KEYS[3], group, again, limit, spent, dead_letters)
return {1, spent}
