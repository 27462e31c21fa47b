#!lua flags=no-writes
-- Return the stored transactions of a log and the batches after them, as of one moment, for readers.
-- KEYS: stream, state, transactions, aborted
-- ARGV: maximum numbers of aborted transactions and of batches
-- Reply: {the reply of `extent` without segments, fields and values of `transactions`, number of aborted transactions,
-- the newest of them with the offsets of their markers, ids and starts of the first batches after the snapshot as
-- `tail` returns them}
-- Parts: extent, leader_epochs, starts
local extent = extent_of(KEYS[1], KEYS[2])
local starts = {}
if extent[3] then
  local offset = math.max(tonumber(extent[2] or '0'), tonumber(extent[1] or '0'))
  starts = starts_from(KEYS[1], id_from(epochs_in(extent[3]), offset), ARGV[2])
end
return {extent, redis.call('HGETALL', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  redis.call('ZREVRANGE', KEYS[4], 0, ARGV[1] - 1, 'WITHSCORES'), starts}
