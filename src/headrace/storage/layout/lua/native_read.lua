#!lua flags=no-writes
-- Read entries of a native partition up to a number of bytes. XRANGE limits only the number of entries, and an entry of
-- a Redis program may have any size.
-- KEYS: stream
-- ARGV: XRANGE or XREVRANGE, start id, end id, maximum entries, maximum bytes, maximum bytes of the first, bytes and
--       fields of the largest record
-- Reply: entries in the order read; 1 if more may exist; bytes and id of the first if it is too large. An entry that is
--         larger than a record has its bytes in place of its fields. Error: WRONGTYPE.
-- Parts: fitting
local function range(after, count)
  return redis.pcall(ARGV[1], KEYS[1], after and '(' .. after or ARGV[2], ARGV[3], 'COUNT', count)
end

local most, room, first = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local entries, more, wants, id = fitting({next = range}, most, room, first, tonumber(ARGV[7]), tonumber(ARGV[8]))
if entries.err then
  return redis.error_reply(entries.err)
end
return {entries, more, wants, id}
