#!lua flags=allow-oom
-- Add batches to the segment that will replace another one. Readers do not see it yet.
-- KEYS: state, clean, segment
-- ARGV: term, number of the segment, then for each batch: next offset, batch, newest time
-- Reply: OK. Errors: FENCED, GONE, RANGE.
-- Parts: term, cleaned, cleaned_writes
--
-- allow-oom: the script `clean_swap` then frees at least as much.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local writing = redis.call('HGET', KEYS[2], 'writing')
local row = {size = 0, newest = -1, batches = 0}
if not writing then
  local rows, following, next_number = cleaned_in(KEYS[2], KEYS[1])
  if tonumber(ARGV[2]) ~= next_number then
    return redis.error_reply('RANGE the next segment is not ' .. ARGV[2])
  end
  redis.call('UNLINK', KEYS[3])
  put_cleaned(KEYS[2], KEYS[1], rows, following, next_number + 1)
  redis.call('HSET', KEYS[2], 'writing', ARGV[2])
elseif writing ~= ARGV[2] then
  return redis.error_reply('RANGE segment ' .. writing .. ' is being written')
else
  local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
  row.size = last and tonumber(last[2][6]) or 0
end
add_to(KEYS[3], row, 3)
return redis.status_reply('OK')
