#!lua flags=allow-oom
-- Move a log's start up and drop the batches that lie wholly before it.
-- KEYS: stream, state
-- ARGV: fencing epoch, oldest time to keep in ms or '', bytes to keep or '', offset to start at or ''
-- Answer: the log start (text). Errors: FENCED, GONE.
--
-- allow-oom: this is what makes room again.
local state = redis.call('HMGET', KEYS[2], 'e', 'b', 'n', 's')
if not state[1] then
  return redis.error_reply('GONE the partition does not exist')
end
if tonumber(state[1]) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. state[1])
end
local log_start, log_end = tonumber(state[2]), tonumber(state[3])

-- The base offset of the first batch whose field (4: time, 6: bytes) reaches a value; the log end when none does.
local function first_reaching(field, least)
  local low, high, found = log_start, log_end - 1, log_end
  while low <= high do
    local middle = low + math.floor((high - low) / 2)
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
if ARGV[2] ~= '' then
  target = math.max(target, first_reaching(4, tonumber(ARGV[2])))
end
if ARGV[3] ~= '' then
  -- A batch goes only if what stays without it still has that many bytes, as Kafka does with segments.
  target = math.max(target, first_reaching(6, tonumber(state[4]) - tonumber(ARGV[3]) + 1))
end
if ARGV[4] ~= '' then
  target = math.max(target, math.min(tonumber(ARGV[4]), log_end))
end
if target == log_start then
  return state[2]
end
local target_text = string.format('%.0f', target)
redis.call('XTRIM', KEYS[1], 'MINID', '=', string.format('%.0f', target + 1) .. '-0')
local entry = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local trimmed = state[4]
if entry then
  trimmed = string.format('%.0f', tonumber(entry[2][6]) - #entry[2][2])
end
redis.call('HSET', KEYS[2], 'b', target_text, 'f', trimmed, 'e', ARGV[1])
return target_text
