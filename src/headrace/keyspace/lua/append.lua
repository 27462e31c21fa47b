-- Append one record batch.
-- KEYS: stream, state, [producers: only for a batch with a producer id]
-- ARGV: fencing epoch, offset span, largest timestamp of the batch, batch,
--       [producer id, producer epoch, first sequence, now in ms]
-- Answer: the base offset; with "D" before it when the batch was there already.
-- Errors: FENCED, GONE (no such partition), FULL (no offsets are left), SEQUENCE, EPOCH.
--
-- Nothing is written before everything is checked: a script that fails half way is not undone. XADD comes first,
-- since it is what a Redis out of memory refuses.
-- Numbers are doubles: whole up to 2^53, and only %.0f prints them so.
local state = redis.call('HMGET', KEYS[2], 'e', 'n', 't', 's')
if not state[1] then
  return redis.error_reply('GONE the partition does not exist')
end
local raise_epoch = false
if state[1] ~= ARGV[1] then
  if tonumber(state[1]) > tonumber(ARGV[1]) then
    return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. state[1])
  end
  raise_epoch = true
end

local span = tonumber(ARGV[2])
local next_offset = tonumber(state[2]) + span
if next_offset > 9007199254740991 then
  return redis.error_reply('FULL offset ' .. state[2] .. ' leaves no room for ' .. ARGV[2] .. ' more below 2^53')
end

local remembered
if KEYS[3] then
  -- A producer's value: its epoch, its last use, then (first sequence, last sequence, base offset) of up to five
  -- batches, the newest first.
  local first = tonumber(ARGV[7])
  local last = string.format('%.0f', (first + span - 1) % 2147483648)
  remembered = ARGV[6] .. ' ' .. ARGV[8] .. ' ' .. ARGV[7] .. ' ' .. last .. ' ' .. state[2]
  local value = redis.call('HGET', KEYS[3], ARGV[5])
  if value then
    local known_epoch, batches, newest = string.match(value, '^(%d+) %d+ (%d+ (%d+) .+)$')
    if known_epoch == ARGV[6] then
      local expected = (tonumber(newest) + 1) % 2147483648
      if first ~= expected then
        for known_first, known_last, base in string.gmatch(batches, '(%d+) (%d+) (%d+)') do
          if known_first == ARGV[7] and known_last == last then
            return 'D' .. base
          end
        end
        return redis.error_reply('SEQUENCE expected ' .. string.format('%.0f', expected) .. ', found ' .. ARGV[7])
      end
      -- Four of them stay; this batch is the fifth.
      local four = string.match(batches, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+')
      remembered = remembered .. ' ' .. (four or batches)
    elseif tonumber(ARGV[6]) < tonumber(known_epoch) then
      return redis.error_reply('EPOCH producer epoch ' .. ARGV[6] .. ' is over, now ' .. known_epoch)
    elseif first ~= 0 then
      return redis.error_reply('SEQUENCE a new producer epoch begins with sequence 0, found ' .. ARGV[7])
    end
  end
end

local next_text = string.format('%.0f', next_offset)
local newest = state[3]
if tonumber(ARGV[3]) > tonumber(newest) then
  newest = ARGV[3]
end
local bytes = string.format('%.0f', tonumber(state[4]) + #ARGV[4])
redis.call('XADD', KEYS[1], next_text .. '-' .. ARGV[2], 'b', ARGV[4], 't', newest, 's', bytes)
redis.call('HSET', KEYS[2], 'n', next_text, 't', newest, 's', bytes)
if raise_epoch then
  redis.call('HSET', KEYS[2], 'e', ARGV[1])
end
if remembered then
  redis.call('HSET', KEYS[3], ARGV[5], remembered)
end
return state[2]
