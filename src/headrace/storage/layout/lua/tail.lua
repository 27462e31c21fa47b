#!lua flags=no-writes
-- Return the headers of batches from an entry.
-- KEYS: stream
-- ARGV: first entry id, maximum number
-- Reply: alternating ids and first 61 bytes of batches, 96 of control batches: they include the marker.
local found = {}
for place, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[2])) do
  found[2 * place - 1] = entry[1]
  local batch = entry[2][2] or ''
  -- Bit 5 of the attributes, whose lower byte is at 22.
  local control = math.floor((string.byte(batch, 23) or 0) / 32) % 2 == 1
  found[2 * place] = string.sub(batch, 1, control and 96 or 61)
end
return found
