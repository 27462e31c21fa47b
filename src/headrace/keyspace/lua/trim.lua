-- Move a log's start up and drop the batches that lie wholly before it.
-- KEYS: stream, state
-- ARGV: fencing epoch, oldest time to keep in ms or '', bytes to keep or '', offset to start at or ''
-- Answer: the log start (text). Errors: FENCED, GONE.
local state = redis.call('HMGET', KEYS[2], 'e', 'b', 'n', 't', 's')
if not state[1] then
  return redis.error_reply('GONE the partition does not exist')
end
if tonumber(state[1]) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. state[1])
end
local log_start, log_end = tonumber(state[2]), tonumber(state[3])

-- The base offset of the first batch whose field (4: largest timestamp, 6: bytes) reaches a value.
local function first_reaching(field, least)
  local low, high, found = log_start, log_end - 1, log_end
  while low <= high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('XRANGE', KEYS[1], string.format('%.0f', middle + 1) .. '-0', '+', 'COUNT', 1)[1]
    if not entry then
      high = middle - 1
    else
      local next_text, span = string.match(entry[1], '(%d+)-(%d+)')
      if tonumber(entry[2][field]) >= least then
        found = tonumber(next_text) - tonumber(span)
        high = found - 1
      else
        low = tonumber(next_text)
      end
    end
  end
  return found
end

local target = log_start
if ARGV[2] ~= '' and log_start < log_end then
  target = math.max(target, first_reaching(4, tonumber(ARGV[2])))
end
if ARGV[3] ~= '' and log_start < log_end then
  -- A batch goes only if what stays without it still has that many bytes, as Kafka does with segments.
  target = math.max(target, first_reaching(6, tonumber(state[5]) - tonumber(ARGV[3]) + 1))
end
if ARGV[4] ~= '' then
  target = math.max(target, math.min(tonumber(ARGV[4]), log_end))
end
if target > log_start then
  redis.call('HSET', KEYS[2], 'b', string.format('%.0f', target), 'e', ARGV[1])
  redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%.0f', target + 1) .. '-0')
  local entry = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  local before = state[5]
  if entry then
    before = string.format('%.0f', tonumber(entry[2][6]) - string.len(entry[2][2]))
  end
  redis.call('HSET', KEYS[2], 'f', before)
end
return string.format('%.0f', target)
