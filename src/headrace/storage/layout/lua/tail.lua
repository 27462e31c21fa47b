#!lua flags=no-writes
-- Return the headers of batches from an entry.
-- KEYS: stream
-- ARGV: first entry id, maximum number
-- Reply: alternating ids and first 61 bytes of batches.
local found = {}
for place, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  found[2 * place - 1] = entry[1]
  found[2 * place] = string.sub(entry[2][2] or '', 1, 61)
end
return found
