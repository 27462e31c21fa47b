#!lua flags=no-writes
-- Return the extent of a log, for readers.
-- KEYS: stream, state, clean
-- Reply: log start offset, snapshot offset, rows of leader epochs, id of the last entry, last stored high watermark,
-- whether it has transactions, rows of cleaned segments, offset where the stream begins; nil for each missing value.
local state = redis.call('HMGET', KEYS[2], 'b', 'o', 'l', 'h', 'x')
local cleaned = redis.call('HMGET', KEYS[3], 'rows', 'end')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {state[1], state[2], state[3], last and last[1] or false, state[4], state[5], cleaned[1], cleaned[2]}
