#!lua flags=no-writes
-- Where a log starts and ends, for readers.
-- KEYS: stream, state
-- Answer: log start, offset of the snapshot, rows of leader epochs, id of the last entry, high watermark
-- as it was written down last; nothing for what is missing.
local state = redis.call('HMGET', KEYS[2], 'b', 'o', 'l', 'h')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {state[1], state[2], state[3], last and last[1] or false, state[4]}
