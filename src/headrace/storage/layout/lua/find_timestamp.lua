#!lua flags=no-writes
-- Find the first batch whose time (`t`) reaches a given one, by binary search. No earlier batch has such a record.
-- KEYS: stream, state
-- ARGV: timestamp in ms, or 'max' for the log's last `t`
-- Reply: {entry of XRANGE or nil, last `t`}. Error: STRAY.
local state = redis.call('HMGET', KEYS[2], 'b', 'l')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if not state[1] or not last then
  return {false, '-1'}
end
if last and last[2][5] ~= 's' then
  return redis.error_reply('STRAY ' .. KEYS[1] .. ' has entries that somebody else wrote')
end
local firsts, terms = {}, {}
for _, first, term in string.gmatch(state[2], '(%d+):(%d+):(%d+)') do
  firsts[#firsts + 1], terms[#terms + 1] = tonumber(first), term
end
-- Return the entry of an offset, or the next one.
local function entry_at(offset)
  local row = 1
  while firsts[row + 1] and firsts[row + 1] <= offset do
    row = row + 1
  end
  return redis.call('XRANGE', KEYS[1], terms[row] .. '-' .. string.format('%.0f', offset + 1), '+', 'COUNT', 1)[1]
end
local newest = last[2][4]
local wanted = tonumber(ARGV[1] == 'max' and newest or ARGV[1])
if wanted > tonumber(newest) then
  return {false, newest}
end
local low, high = tonumber(state[1]), tonumber(string.match(last[1], '%d+$')) - 1
local best = false
while low <= high do
  local entry = entry_at(low + math.floor((high - low) / 2))
  if not entry then
    break
  end
  local following = tonumber(string.match(entry[1], '%d+$'))
  local base = struct.unpack('>i8', entry[2][2])
  if tonumber(entry[2][4]) >= wanted then
    best = entry
    high = base - 1
  else
    low = following
  end
end
return {best, newest}
