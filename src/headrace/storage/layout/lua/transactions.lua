#!lua flags=no-writes
-- Return the stored transactions of a log and the batches after them, as of one moment, for readers.
-- KEYS: stream, state, transactions, aborted
-- ARGV: maximum numbers of aborted transactions and of batches
-- Reply: {the reply of `extent`, fields and values of `transactions`, number of aborted transactions, the newest of
-- them with the offsets of their markers, ids and starts of the first batches after the snapshot as `tail` returns them}
local state = redis.call('HMGET', KEYS[2], 'b', 'o', 'l', 'h', 'x')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local extent = {state[1], state[2], state[3], last and last[1] or false, state[4], state[5]}
local starts = {}
if state[3] then
  local offset, term = math.max(tonumber(state[2] or '0'), tonumber(state[1] or '0')), nil
  for first, row_term in string.gmatch(state[3], '%d+:(%d+):(%d+)') do
    if not term or tonumber(first) <= offset then
      term = row_term
    end
  end
  local from = string.format('%s-%.0f', term, offset + 1)
  for place, entry in ipairs(redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', ARGV[2])) do
    starts[2 * place - 1] = entry[1]
    local batch = entry[2][2] or ''
    -- See `tail`.
    local control = math.floor((string.byte(batch, 23) or 0) / 32) % 2 == 1
    starts[2 * place] = string.sub(batch, 1, control and 96 or 61)
  end
end
return {extent, redis.call('HGETALL', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  redis.call('ZREVRANGE', KEYS[4], 0, ARGV[1] - 1, 'WITHSCORES'), starts}
