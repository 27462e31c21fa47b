#!lua flags=no-writes
-- The headers of the batches from an entry on.
-- KEYS: stream
-- ARGV: first entry id, how many at most
-- Answer: for each entry its id and the first 61 bytes of its batch, in turn.
local found = {}
for place, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  found[2 * place - 1] = entry[1]
  found[2 * place] = string.sub(entry[2][2] or '', 1, 61)
end
return found
