#!lua flags=no-writes
-- Find the first batch whose time (`t`) reaches a given one, by binary search. No earlier batch has such a record.
-- KEYS: stream, state, clean
-- ARGV: timestamp in ms, or 'max' for the log's last `t`
-- Reply: {entry of XRANGE or nil, last `t`}. Error: STRAY.
-- Parts: cleaned, leader_epochs
--
-- Cleaned batches lie in segments, which are named after the key `clean`. Their times do not fall either.
local state = redis.call('HMGET', KEYS[2], 'b', 'l')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local segments, cleaned_end = cleaned_in(KEYS[3], KEYS[2])
local newest_segment = segments[#segments]
if not state[1] or not (last or newest_segment) then
  return {false, '-1'}
end
if last and last[2][5] ~= 's' then
  return redis.error_reply('STRAY ' .. KEYS[1] .. ' has entries that somebody else wrote')
end
local epochs = epochs_in(state[2])
-- Return the entry of an offset, or the next one.
local segment
local function entry_at(offset)
  if segment then
    return redis.call('XRANGE', segment, '0-' .. string.format('%.0f', offset + 1), '+', 'COUNT', 1)[1]
  end
  return redis.call('XRANGE', KEYS[1], id_from(epochs, offset), '+', 'COUNT', 1)[1]
end
local newest = last and last[2][4] or string.format('%.0f', newest_segment.newest)
local wanted = tonumber(ARGV[1] == 'max' and newest or ARGV[1])
if wanted > tonumber(newest) then
  return {false, newest}
end
local start = tonumber(state[1])
-- Return the first entry from `low` to `high` whose time reaches the wanted one.
local function first_between(low, high)
  local best = false
  while low <= high do
    local middle = low + math.floor((high - low) / 2)
    local entry = entry_at(middle)
    if not entry then
      high = middle - 1
    elseif tonumber(entry[2][4]) >= wanted then
      best = entry
      high = math.min(struct.unpack('>i8', entry[2][2]), middle) - 1
    else
      low = tonumber(string.match(entry[1], '%d+$'))
    end
  end
  return best
end
for _, row in ipairs(segments) do
  if row.newest >= wanted and row.following > start then
    segment = KEYS[3] .. ':' .. string.format('%.0f', row.number)
    local found = first_between(math.max(start, row.first), row.following - 1)
    -- The log start may be behind the last batch of a segment.
    if found then
      return {found, newest}
    end
  end
end
segment = nil
local log_end = last and tonumber(string.match(last[1], '%d+$')) or 0
return {first_between(math.max(start, cleaned_end), log_end - 1), newest}
