-- Append one record batch.
-- KEYS: stream, state, [producers: only for a batch with a producer id]
-- ARGV: fencing epoch, offset span, largest timestamp of the batch, batch,
--       [producer id, producer epoch, first sequence, now in ms]
-- Answer: the base offset; with "D" before it when the batch was there already.
-- Errors: FENCED, GONE (no such partition), SEQUENCE, EPOCH.
--
-- Nothing is written before everything is checked: a script that fails half way is not undone.
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

local base = tonumber(state[2])
local span = tonumber(ARGV[2])
local remembered
if KEYS[3] then
  -- A producer's value: its epoch, its last use, then (first sequence, last sequence, base offset) of up to five batches.
  local first = tonumber(ARGV[7])
  local last = (first + span - 1) % 2147483648
  local known = {}
  local value = redis.call('HGET', KEYS[3], ARGV[5])
  if value then
    local words = {}
    for word in string.gmatch(value, '%S+') do
      words[#words + 1] = word
    end
    local epoch = tonumber(ARGV[6])
    local known_epoch = tonumber(words[1])
    if epoch < known_epoch then
      return redis.error_reply('EPOCH producer epoch ' .. ARGV[6] .. ' is over, now ' .. words[1])
    end
    if epoch > known_epoch then
      if first ~= 0 then
        return redis.error_reply('SEQUENCE a new producer epoch begins with sequence 0, found ' .. ARGV[7])
      end
    else
      for place = 3, #words, 3 do
        if tonumber(words[place]) == first and tonumber(words[place + 1]) == last then
          return 'D' .. words[place + 2]
        end
      end
      local expected = (tonumber(words[#words - 1]) + 1) % 2147483648
      if first ~= expected then
        return redis.error_reply('SEQUENCE expected ' .. string.format('%.0f', expected) .. ', found ' .. ARGV[7])
      end
      -- Keep the last four; this batch is the fifth.
      for place = math.max(3, #words - 11), #words do
        known[#known + 1] = words[place]
      end
    end
  end
  known[#known + 1] = ARGV[7]
  known[#known + 1] = string.format('%.0f', last)
  known[#known + 1] = string.format('%.0f', base)
  remembered = ARGV[6] .. ' ' .. ARGV[8] .. ' ' .. table.concat(known, ' ')
end

local next_text = string.format('%.0f', base + span)
local newest = state[3]
if tonumber(ARGV[3]) > tonumber(newest) then
  newest = ARGV[3]
end
local bytes = string.format('%.0f', tonumber(state[4]) + string.len(ARGV[4]))
redis.call('XADD', KEYS[1], next_text .. '-' .. ARGV[2], 'b', ARGV[4], 't', newest, 's', bytes)
redis.call('HSET', KEYS[2], 'n', next_text, 't', newest, 's', bytes)
if raise_epoch then
  redis.call('HSET', KEYS[2], 'e', ARGV[1])
end
if remembered then
  redis.call('HSET', KEYS[3], ARGV[5], remembered)
end
return state[2]
