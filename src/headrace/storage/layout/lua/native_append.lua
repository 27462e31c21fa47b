-- Append records to a native partition, one entry each, all or none.
-- KEYS: stream, state, producers
-- ARGV: fencing epoch, name of the server's process, its number of appends without a response, sequence bits, largest
--       timestamp in ms or -1, producer id ('' for none), producer epoch, first sequence, 'follows' to reject an
--       unknown producer, number of records, minimum base offset, then for each record: number of arguments, field
--       names and values
-- Reply: the base offset (text), after "D" for duplicate records. Errors: FENCED, GONE, OFFSETS (none are left below
--         2^53), SEQUENCE, EPOCH, or Redis's own.
-- Parts: facts, partition
--
-- Appends of a lost connection may still arrive. After a later append of that process, they are rejected, because their
-- records would follow newer ones.
--
-- The records get consecutive offsets from the present millisecond or the last id: more than 2^bits records in a
-- millisecond continue in the next one. A full Redis, a wrong type or a foreign id fails the first XADD, before any
-- write. The later ones cannot fail.
local stream, state_key, producers = KEYS[1], KEYS[2], KEYS[3]
local state = redis.call('HMGET', state_key, 'e', 'n', 'x', 'w')
local no = refused(state[1])
if no then
  return no
end
local writer, given_up = ARGV[2], ARGV[3]
local known_writer, known_given_up = string.match(state[4] or '', '^(%S+) (%d+)$')
if known_writer == writer and tonumber(known_given_up) > tonumber(given_up) then
  return redis.error_reply('FENCED the append was given up, and one that was sent later is there')
end
local per = 2 ^ tonumber(ARGV[4])
local span = tonumber(ARGV[10])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local remembered
local producer = ARGV[6]
if producer ~= '' then
  -- A producer's value: epoch, last use, then (first sequence, last sequence, base offset) of up to five batches, the
  -- newest first, as for logs.
  local epoch, first_text = ARGV[7], ARGV[8]
  local first = tonumber(first_text)
  local last = string.format('%.0f', (first + span - 1) % 2147483648)
  remembered = {epoch .. ' ' .. string.format('%.0f', now) .. ' ' .. first_text .. ' ' .. last .. ' ', ''}
  local value = redis.call('HGET', producers, producer)
  if value then
    local known_epoch, batches, newest = string.match(value, '^(%d+) %d+ (%d+ (%d+) .+)$')
    if known_epoch == epoch then
      local expected = (tonumber(newest) + 1) % 2147483648
      if first ~= expected then
        for known_first, known_last, base in string.gmatch(batches, '(%d+) (%d+) (%d+)') do
          if known_first == first_text and known_last == last then
            return 'D' .. base
          end
        end
        return redis.error_reply('SEQUENCE expected ' .. string.format('%.0f', expected) .. ', found ' .. first_text)
      end
      local four = string.match(batches, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+')
      remembered[2] = ' ' .. (four or batches)
    elseif tonumber(epoch) < tonumber(known_epoch) then
      return redis.error_reply('EPOCH producer epoch ' .. epoch .. ' is over, now ' .. known_epoch)
    elseif first ~= 0 then
      return redis.error_reply('SEQUENCE a new producer epoch begins with sequence 0, found ' .. first_text)
    end
  elseif ARGV[9] ~= '' then
    -- An unknown producer may begin with any sequence, but not after a rejected batch of its own.
    return redis.error_reply('SEQUENCE expected what was sent ahead, found ' .. first_text)
  end
end

-- After a loss of data, Redis may have only older ids than clients have read.
local base = math.max(now * per, tonumber(state[2]), tonumber(ARGV[11]))
local function exhausted()
  if base + span > 9007199254740991 then
    return redis.error_reply('OFFSETS offset ' .. string.format('%.0f', base) .. ' leaves no room for '
      .. string.format('%.0f', span) .. ' more below 2^53')
  end
end
no = exhausted()
if no then
  return no
end
local ms, sequence = math.floor(base / per), base % per
local place = 12
local count = tonumber(ARGV[place])
local arguments = {unpack(ARGV, place + 1, place + count)}
local added = redis.pcall('XADD', stream, string.format('%.0f-%.0f', ms, sequence), unpack(arguments))
if type(added) == 'table' and added.err then
  if not string.find(added.err, 'equal or smaller', 1, true) then
    return redis.error_reply(added.err)
  end
  -- An id of another program is ahead of the clock.
  local last = facts_of(redis.call('XINFO', 'STREAM', stream))['last-generated-id']
  local last_ms, last_sequence = string.match(last, '^(%d+)-(%d+)$')
  ms, sequence = tonumber(last_ms), tonumber(last_sequence) + 1
  if sequence >= per then
    ms, sequence = ms + 1, 0
  end
  base = ms * per + sequence
  no = exhausted()
  if no then
    return no
  end
  redis.call('XADD', stream, string.format('%.0f-%.0f', ms, sequence), unpack(arguments))
end
local ms_text = string.format('%.0f', ms)
for _ = 2, span do
  place = place + count + 1
  count = tonumber(ARGV[place])
  sequence = sequence + 1
  if sequence == per then
    ms, sequence = ms + 1, 0
    ms_text = string.format('%.0f', ms)
  end
  redis.call('XADD', stream, ms_text .. '-' .. sequence, unpack(ARGV, place + 1, place + count))
end

local base_text = string.format('%.0f', base)
redis.call('HSET', state_key, 'n', string.format('%.0f', base + span))
-- The maximum lead of timestamps over ids limits a search by time.
local ahead = tonumber(ARGV[5]) - math.floor(base / per)
if ahead > tonumber(state[3] or '0') then
  redis.call('HSET', state_key, 'x', string.format('%.0f', ahead))
end
if state[1] ~= ARGV[1] then
  redis.call('HSET', state_key, 'e', ARGV[1])
end
if given_up ~= '0' and (known_writer ~= writer or known_given_up ~= given_up) then
  redis.call('HSET', state_key, 'w', writer .. ' ' .. given_up)
end
if remembered then
  redis.call('HSET', producers, producer, remembered[1] .. base_text .. remembered[2])
end
return base_text
