#!lua flags=allow-oom
-- Store acknowledged batches again, after a recovery with 'resume'.
-- KEYS: stream, state
-- ARGV: term, 'finish' for the last call, then for each batch: entry id, batch, newest time, bytes appended
-- Reply: {entries in the stream, rows}. Errors: FENCED, GONE.
-- Parts: term
--
-- After the last batch, the log continues under the leader epoch of this recovery.
-- allow-oom: they had room when they were acknowledged.
local state = redis.call('HMGET', KEYS[2], 'e', 'l')
local no = refused(state[1])
if no then
  return no
end
for place = 3, #ARGV, 4 do
  local added = redis.call('XADD', KEYS[1], 'NOMKSTREAM', ARGV[place], 'b', ARGV[place + 1], 't', ARGV[place + 2], 's',
    ARGV[place + 3])
  if not added then
    return redis.error_reply('GONE the stream does not exist')
  end
end
local rows = state[2]
if ARGV[2] == 'finish' then
  local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  local before, epoch, first = string.match(rows, '^(.-) ?(%d+):(%d+):%d+$')
  local log_end = last and string.match(last[1], '%d+$') or first
  if tonumber(log_end) < tonumber(first) then
    log_end = first
  end
  if epoch ~= ARGV[1] then
    if log_end == first then
      rows = before
    end
    rows = (rows == '' and '' or rows .. ' ') .. ARGV[1] .. ':' .. log_end .. ':' .. ARGV[1]
    redis.call('HSET', KEYS[2], 'l', rows)
  end
end
return {redis.call('XLEN', KEYS[1]), rows}
