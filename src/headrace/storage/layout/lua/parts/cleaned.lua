-- Return the rows of a log's cleaned segments (see `layout/segments.py`), the offset where its stream begins, and the
-- next segment's number. `key` is nil in a caller that knows of none.
local function cleaned_in(key)
  local found = key and redis.call('HMGET', key, 'rows', 'end', 'next') or {}
  local rows = {}
  for number, first, following, size, newest, batches in
    string.gmatch(found[1] or '', '(%d+):(%d+):(%d+):(%d+):(-?%d+):(%d+)') do
    rows[#rows + 1] = {number = tonumber(number), first = tonumber(first), following = tonumber(following),
      size = tonumber(size), newest = tonumber(newest), batches = tonumber(batches)}
  end
  return rows, tonumber(found[2] or '0'), tonumber(found[3] or '0')
end
