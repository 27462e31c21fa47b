#!lua flags=allow-oom
-- Replace a segment by the one that `clean_write` wrote, or remove it if nothing of it is kept.
-- KEYS: state, clean, segment, its replacement
-- ARGV: term, number of the segment, number of the replacement or ''
-- Reply: {rows, end, next number}: texts. Errors: FENCED, GONE, RANGE.
-- Parts: term, cleaned, cleaned_writes
--
-- allow-oom: this frees memory.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local writing = redis.call('HGET', KEYS[2], 'writing')
if (writing or '') ~= ARGV[3] then
  return redis.error_reply('RANGE segment ' .. ARGV[3] .. ' is not being written')
end
local rows, following, next_number = cleaned_in(KEYS[2])
local kept, found = {}, nil
for _, row in ipairs(rows) do
  if row.number ~= tonumber(ARGV[2]) then
    kept[#kept + 1] = row
  else
    found = row
    if writing then
      local last = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
      if not last then
        return redis.error_reply('RANGE segment ' .. writing .. ' is empty')
      end
      row.number, row.size, row.newest = tonumber(writing), tonumber(last[2][6]), tonumber(last[2][4])
      row.batches = redis.call('XLEN', KEYS[4])
      kept[#kept + 1] = row
    end
  end
end
if not found then
  return redis.error_reply('RANGE the log has no segment ' .. ARGV[2])
end
redis.call('HDEL', KEYS[2], 'writing')
redis.call('UNLINK', KEYS[3])
return put_cleaned(KEYS[2], kept, following, next_number)
