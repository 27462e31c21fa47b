-- Return the texts of a log's list of cleaned segments: rows (see `layout/segments.py`), the offset where its stream
-- begins, and the next segment's number; and 'copy' if they are those in the state, because the list is lost.
-- `key` is nil in a caller that knows of none.
local function list_in(key, state_key)
  local found = key and redis.call('HMGET', key, 'rows', 'end', 'next') or {}
  if not key or found[2] then
    return found[1], found[2], found[3]
  end
  local copied = redis.call('HGET', state_key, 'c')
  if not copied then
    return found[1], found[2], found[3]
  end
  local following, number, rows = string.match(copied, '^(%d+) (%d+) (.*)$')
  return rows, following, number, 'copy'
end

-- Return these as tables and numbers.
local function cleaned_in(key, state_key)
  local texts, following_text, number_text = list_in(key, state_key)
  local rows = {}
  for number, first, following, size, newest, batches in
    string.gmatch(texts or '', '(%d+):(%d+):(%d+):(%d+):(-?%d+):(%d+)') do
    rows[#rows + 1] = {number = tonumber(number), first = tonumber(first), following = tonumber(following),
      size = tonumber(size), newest = tonumber(newest), batches = tonumber(batches)}
  end
  return rows, tonumber(following_text or '0'), tonumber(number_text or '0')
end
