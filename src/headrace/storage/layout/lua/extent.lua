#!lua flags=no-writes
-- Return the extent of a log, for readers.
-- KEYS: stream, state, clean
-- Reply: log start offset, snapshot offset, rows of leader epochs, id of the last entry, last stored high watermark,
-- whether it has transactions, rows of cleaned segments, offset where the stream begins; nil for each missing value.
-- Parts: extent
local extent = extent_of(KEYS[1], KEYS[2])
local cleaned = redis.call('HMGET', KEYS[3], 'rows', 'end')
extent[7], extent[8] = cleaned[1], cleaned[2]
return extent
