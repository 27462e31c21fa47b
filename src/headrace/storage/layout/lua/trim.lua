#!lua flags=allow-oom
-- Move the log start offset up, and remove the batches before it.
-- KEYS: stream, state, clean, then the segments that may be removed
-- ARGV: term, oldest time to keep in ms or '', bytes to keep or '', new start offset or '', and optionally an offset
--   that must stay with all later ones
-- Reply: {log start offset (text), entries left, rows of cleaned segments or nil if they are as before}. Errors: FENCED,
--   GONE, STRAY.
-- Parts: term, leader_epochs, cleaned, cleaned_writes
--
-- The snapshot offset is the limit: a recovery reads producers from later batches. Times and bytes are those of the
-- stream: the caller decides about cleaned segments, and asks for them only if none of those is left.
-- allow-oom: this frees memory.
local state = redis.call('HMGET', KEYS[2], 'e', 'b', 'o', 'l')
local no = refused(state[1])
if no then
  return no
end
local epochs = epochs_in(state[4])
local log_start, snapshot = tonumber(state[2]), tonumber(state[3])
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if last and last[2][5] ~= 's' then
  return redis.error_reply('STRAY ' .. KEYS[1] .. ' has entries that somebody else wrote')
end
local segments, cleaned_end, next_number = cleaned_in(KEYS[3], KEYS[2])
-- Offset where the log begins in the stream.
local stream_start = math.max(log_start, cleaned_end)
local log_end = last and tonumber(string.match(last[1], '%d+$')) or stream_start

-- Return the base offset of the first batch whose field (4: time, 6: bytes) reaches a value, or the log end offset.
local function first_reaching(field, least)
  local low, high, found = stream_start, log_end - 1, log_end
  while low <= high do
    local middle = low + math.floor((high - low) / 2)
    local entry = redis.call('XRANGE', KEYS[1], id_from(epochs, middle), '+', 'COUNT', 1)[1]
    if not entry then
      high = middle - 1
    elseif tonumber(entry[2][field]) >= least then
      found = struct.unpack('>i8', entry[2][2])
      high = math.min(found, middle) - 1
    else
      low = tonumber(string.match(entry[1], '%d+$'))
    end
  end
  return found
end

local target = log_start
if ARGV[2] ~= '' then
  target = math.max(target, first_reaching(4, tonumber(ARGV[2])))
end
if ARGV[3] ~= '' and last then
  -- Like a segment in Kafka, a batch is removed only if the rest still has that many bytes.
  target = math.max(target, first_reaching(6, tonumber(last[2][6]) - tonumber(ARGV[3]) + 1))
end
if ARGV[4] ~= '' then
  target = math.max(target, tonumber(ARGV[4]))
end
if ARGV[5] and ARGV[5] ~= '' then
  target = math.min(target, tonumber(ARGV[5]))
end
target = math.max(log_start, math.min(target, snapshot))
local kept_segments
if target > log_start and #segments > 0 then
  kept_segments = {}
  for _, row in ipairs(segments) do
    if row.following > target then
      kept_segments[#kept_segments + 1] = row
    else
      redis.call('UNLINK', KEYS[3] .. ':' .. string.format('%.0f', row.number))
    end
  end
  kept_segments = put_cleaned(KEYS[3], KEYS[2], kept_segments, cleaned_end, next_number)[1]
end
if target > log_start then
  if target > stream_start then
    redis.call('XTRIM', KEYS[1], 'MINID', '=', id_from(epochs, target))
  end
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if last then
    local trimmed = first and tonumber(first[2][6]) - #first[2][2] or tonumber(last[2][6])
    redis.call('HSET', KEYS[2], 't', last[2][4], 's', last[2][6], 'f', string.format('%.0f', trimmed))
  end
  local kept = table.concat(epochs.rows, ' ', row_of(epochs, target))
  redis.call('HSET', KEYS[2], 'b', string.format('%.0f', target), 'l', kept)
end
return {string.format('%.0f', target), redis.call('XLEN', KEYS[1]), kept_segments or false}
