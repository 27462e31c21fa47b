#!lua flags=allow-oom
-- Acknowledge entries of a member of a share group: all of them, or none if the member does not have them all.
-- KEYS: stream, state
-- ARGV: fencing epoch, group, member, maximum deliveries; then for each run of entries: 'done', 'release' or 'renew', its
--       first and last id, and the number of its entries
-- Reply: 0 if nothing changed, otherwise 1, and ids and numbers of deliveries of entries that were acknowledged instead
--         of released, because they reached the maximum. Errors: FENCED, GONE, NOGROUP, WRONGTYPE.
-- Parts: group, ids, partition, share
--
-- XACK would acknowledge entries of other consumers, too. Entries below all pending ones are done already: repeated
-- acknowledgements of them change nothing.
local stream, group, member, limit = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
-- Entries of programs rarely have neighboring ids, so that each is a run. Above this number, one call finds them all.
local MANY = 8
-- More than a member can have.
local MOST = 1000000
local runs = (#ARGV - 4) / 4

local singles, first_single, last_single = 0, nil, nil
for place = 5, #ARGV, 4 do
  if ARGV[place + 3] == '1' then
    singles, first_single, last_single = singles + 1, first_single or ARGV[place + 1], ARGV[place + 2]
  end
end
local known
if singles > MANY then
  local pending = redis.pcall('XPENDING', stream, group, first_single, last_single, MOST, member)
  if pending.err then
    return redis.error_reply(pending.err)
  end
  known = {}
  for _, entry in ipairs(pending) do
    known[entry[1]] = entry
  end
end

local lowest
-- Whether all entries up to an id are done.
local function is_done(id)
  if not lowest then
    local pending = redis.call('XPENDING', stream, group, '-', '+', 1)[1]
    lowest = pending and {pending[1], false} or {group_facts(stream, group)['last-delivered-id'], true}
  end
  return less(id, lowest[1]) or (lowest[2] and id == lowest[1])
end

local taken = {}
for run = 1, runs do
  local place = 4 * run + 1
  local last, want = ARGV[place + 2], tonumber(ARGV[place + 3])
  local pending
  if known and want == 1 then
    pending = {known[last]}
  else
    pending = redis.pcall('XPENDING', stream, group, ARGV[place + 1], last, math.min(want, MOST) + 1, member)
    if pending.err then
      return redis.error_reply(pending.err)
    end
  end
  if #pending ~= want then
    if #pending > 0 or not is_done(last) then
      return {0, {}}
    end
  end
  taken[run] = pending
end

local done, again, renewed, spent = {}, {}, {}, {}
for run = 1, runs do
  local kind = ARGV[4 * run + 1]
  for _, entry in ipairs(taken[run]) do
    if kind == 'done' then
      done[#done + 1] = entry[1]
    elseif kind == 'renew' then
      renewed[#renewed + 1] = entry[1]
    else
      again[#again + 1] = entry
    end
  end
end
acknowledge(stream, group, done)
hand_over(stream, group, member, renewed, '0')
release(stream, group, again, limit, spent)
return {1, spent}
