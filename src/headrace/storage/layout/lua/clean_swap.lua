#!lua flags=allow-oom
-- Replace neighboring segments by the one that `clean_write` wrote, or remove them if nothing of them is kept.
-- KEYS: state, clean, replacement, the segments
-- ARGV: term, number of the replacement or '', numbers of the segments in their order
-- Reply: {rows, end, next number}: texts. Errors: FENCED, GONE, RANGE.
-- Parts: term, cleaned, cleaned_writes
--
-- allow-oom: this frees memory.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local writing = redis.call('HGET', KEYS[2], 'writing')
if (writing or '') ~= ARGV[2] then
  return redis.error_reply('RANGE segment ' .. ARGV[2] .. ' is not being written')
end
local last = writing and redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if writing and not last then
  return redis.error_reply('RANGE segment ' .. writing .. ' is empty')
end
local rows, following, next_number = cleaned_in(KEYS[2], KEYS[1])
local kept, place, count = {}, 1, #ARGV - 2
while rows[place] and rows[place].number ~= tonumber(ARGV[3]) do
  kept[place] = rows[place]
  place = place + 1
end
for index = 1, count do
  local row = rows[place + index - 1]
  if not row or row.number ~= tonumber(ARGV[index + 2]) then
    return redis.error_reply('RANGE the log has no segment ' .. ARGV[index + 2])
  end
end
if writing then
  kept[#kept + 1] = {number = tonumber(writing), first = rows[place].first, following = rows[place + count - 1].following,
    size = tonumber(last[2][6]), newest = tonumber(last[2][4]), batches = redis.call('XLEN', KEYS[3])}
end
for index = place + count, #rows do
  kept[#kept + 1] = rows[index]
end
redis.call('HDEL', KEYS[2], 'writing')
for index = 4, #KEYS do
  redis.call('UNLINK', KEYS[index])
end
return put_cleaned(KEYS[2], KEYS[1], kept, following, next_number)
