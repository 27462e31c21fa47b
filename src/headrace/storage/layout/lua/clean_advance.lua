#!lua flags=allow-oom
-- Replace the first batches of a log's stream by those that the cleaner keeps of them, in a segment.
-- KEYS: stream, state, clean, segment
-- ARGV: term, number of the segment (the last one's, or the next one), offset where the log begins in the stream, and
--   where it will begin, then for each kept batch: next offset, batch, newest time
-- Reply: {rows, end, next number: texts, entries left}. Errors: FENCED, GONE, RANGE.
-- Parts: term, leader_epochs, cleaned, cleaned_writes
--
-- A log's last batch is never cleaned, so the stream has one from the new end on. The snapshot offset is a limit, as
-- for `trim`.
-- allow-oom: this frees memory.
local state = redis.call('HMGET', KEYS[2], 'e', 'b', 'o', 'l')
local no = refused(state[1])
if no then
  return no
end
local number, from, following = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local rows, cleaned_end, next_number = cleaned_in(KEYS[3], KEYS[2])
if from ~= math.max(cleaned_end, tonumber(state[2])) or following <= from then
  return redis.error_reply('RANGE ' .. KEYS[1] .. ' does not begin at ' .. ARGV[3])
end
if following > tonumber(state[3]) then
  return redis.error_reply('RANGE the snapshot of ' .. KEYS[1] .. ' is at ' .. state[3] .. ', before ' .. ARGV[4])
end
local id = id_from(epochs_in(state[4]), following)
local first = redis.call('XRANGE', KEYS[1], id, '+', 'COUNT', 1)[1]
if not first or first[2][5] ~= 's' or struct.unpack('>i8', first[2][2]) ~= following then
  return redis.error_reply('RANGE ' .. KEYS[1] .. ' has no batch at ' .. ARGV[4])
end
local last = rows[#rows]
if #ARGV > 4 then
  if not last or last.number ~= number then
    if number ~= next_number then
      return redis.error_reply('RANGE the next segment is not ' .. ARGV[2])
    end
    next_number = number + 1
    -- What an earlier server may have left under this name is not part of the log.
    redis.call('UNLINK', KEYS[4])
    last = {number = number, first = from, following = following, size = 0, newest = -1, batches = 0}
    rows[#rows + 1] = last
  end
  last.following = following
  add_to(KEYS[4], last, 5)
end
local reply = put_cleaned(KEYS[3], KEYS[2], rows, following, next_number)
redis.call('XTRIM', KEYS[1], 'MINID', '=', id)
local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
redis.call('HSET', KEYS[2], 't', newest[2][4], 's', newest[2][6],
  'f', string.format('%.0f', tonumber(first[2][6]) - #first[2][2]))
reply[4] = redis.call('XLEN', KEYS[1])
return reply
