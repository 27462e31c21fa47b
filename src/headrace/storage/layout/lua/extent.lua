#!lua flags=no-writes
-- Return the extent of a log, for readers.
-- KEYS: stream, state, clean
-- Reply: log start offset, snapshot offset, rows of leader epochs, id of the last entry, last stored high watermark,
-- whether it has transactions, rows of cleaned segments, offset where the stream begins; nil for each missing value.
-- Parts: extent, cleaned
local extent = extent_of(KEYS[1], KEYS[2])
local rows, following = list_in(KEYS[3], KEYS[2])
extent[7], extent[8] = rows or false, following or false
return extent
