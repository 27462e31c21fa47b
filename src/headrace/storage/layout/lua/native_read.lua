#!lua flags=no-writes
-- Entries of a native partition, as many as fit so many bytes: XRANGE has a bound of entries only, and an entry that a
-- Redis program added may have any size.
-- KEYS: stream
-- ARGV: XRANGE or XREVRANGE, id to begin at, id to end at, most entries, most bytes, bytes that the first may have,
--       bytes and fields of the largest record
-- Answer: entries in the order read; 1 if there may be more; bytes of the first, where there are none as it has too many;
--         then its id, too. An entry that is larger than a record has its bytes in place of its fields. Error: WRONGTYPE.
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
