#!lua flags=allow-oom
-- Acquire entries for a member of a share group, which is the Redis consumer group of its name: released entries, then
-- those whose lock has ended, then new ones.
-- KEYS: stream, state, groups
-- ARGV: fencing epoch, group, member, id at which to create the group if it was destroyed, lock in milliseconds, maximum
--       deliveries, maximum entries, maximum pending entries of the group, maximum bytes, maximum bytes of the first,
--       bytes and fields of the largest record, '1' to look for ended locks, '1' if the group has a dead letter topic
-- Reply: entries; numbers of deliveries of the first ones, which are not new; ids and numbers of deliveries of entries
--         that were given up, because they reached the maximum; pending entries of the group; 1 if more may be
--         available; bytes of the first if it is too large, which stays available. An entry that is larger than a
--         record has its bytes in place of its fields. Errors: FENCED, GONE, WRONGTYPE.
-- Parts: fitting, partition, share
--
-- An entry is measured when it has been delivered. One that does not fit is put back with its earlier number of
-- deliveries.
--
-- allow-oom: groups can read from a full Redis.
local stream, group, member = KEYS[1], ARGV[2], ARGV[3]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local ours = redis.call('HGET', KEYS[3], group)
if not has_begun(ours) then
  return not_begun(group)
end
local lock, limit, most, window = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local room, first, largest, fields = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])

-- Entries of one look for ended locks, at least.
local LEAST = 100

local found, kept, counts, spent, wants, full = {}, 0, {}, {}, 0, false
local step, widest = 1, 1

-- Keep delivered entries while they fit. count_of: numbers of deliveries of entries that are not new.
local function keep(entries, count_of)
  for place = 1, #entries do
    local entry = entries[place]
    local size, count = weighed(entry, largest, fields), count_of and count_of[entry[1]] or 1
    if kept == 0 and size > first and entry[2] ~= size then
      full, wants = true, size
    end
    if full or (kept > 0 and size > room) then
      full = true
      redis.call('XCLAIM', stream, group, RELEASED, 0, entry[1], 'IDLE', LONG_IDLE, 'RETRYCOUNT', count - 1, 'JUSTID')
    else
      kept, room = kept + 1, room - size
      found[kept] = entry
      if count_of then
        counts[kept] = count
      end
      if size > widest then
        widest = size
      end
    end
  end
  full = full or room <= 0 or kept >= most
  step = math.max(1, math.min(4 * step, 64, math.floor(room / widest)))
end

-- Acquire pending entries of XPENDING, a few at a time.
local function claim(pending)
  local place = 1
  while place <= #pending and not full do
    local ids, count_of, over = {}, {}, {}
    while place <= #pending and #ids < math.min(step, most - kept) do
      local entry = pending[place]
      if entry[4] >= limit then
        over[#over + 1] = entry[1]
        spent[#spent + 1], spent[#spent + 2] = entry[1], entry[4]
      else
        ids[#ids + 1], count_of[entry[1]] = entry[1], entry[4] + 1
      end
      place = place + 1
    end
    give_up(stream, KEYS[3], group, over, ARGV[14] == '1')
    if #ids > 0 then
      keep(redis.call('XCLAIM', stream, group, member, 0, unpack(ids)), count_of)
    end
  end
end

local pending, failed = pending_of(stream, group, '-', '+', most, RELEASED)
if failed then
  return failed
end
if not pending then
  redis.call('XGROUP', 'CREATE', stream, group, ARGV[4], 'MKSTREAM')
  pending = {}
end
if not string.find(ours, cjson.encode(member), 1, true) then
  local members = members_of(KEYS[3], group)
  members[#members + 1] = member
  redis.call('HSET', KEYS[3], group, cjson.encode(members))
end

claim(pending)
local more = #pending == most
if not full and ARGV[13] == '1' then
  -- Dead letters may be the first ones.
  local from, others = '-', {}
  while from and #others == 0 do
    local asked = math.max(most - kept, LEAST)
    pending = redis.call('XPENDING', stream, group, 'IDLE', lock, from, '+', asked)
    for _, entry in ipairs(pending) do
      if entry[2] ~= DEAD then
        others[#others + 1] = entry
      end
    end
    from = #pending == asked and '(' .. pending[asked][1]
  end
  claim(others)
  more = more or #others > 0
end
local held = redis.call('XPENDING', stream, group)[1]
while not full and held < window do
  local asked = math.min(step, most - kept, window - held)
  local reply = redis.call('XREADGROUP', 'GROUP', group, member, 'COUNT', asked, 'STREAMS', stream, '>')
  local entries = reply and reply[1][2] or {}
  held = held + #entries
  keep(entries)
  if #entries < asked then
    break
  end
end
return {found, counts, spent, held, (full or more) and 1 or 0, wants}
