#!lua flags=no-writes
-- Entries of a native partition, as many as fit so many bytes: XRANGE has a bound of entries only, and an entry that a
-- Redis program added may have any size.
-- KEYS: stream
-- ARGV: XRANGE or XREVRANGE, id to begin at, id to end at, most entries, most bytes
-- Answer: entries in the order read, the first however large it is; 1 if there may be more. Error: WRONGTYPE.
-- Parts: size
local at, most, room = ARGV[2], tonumber(ARGV[4]), tonumber(ARGV[5])
local found, step, largest = {}, 1, 1
while #found < most do
  local asked = math.min(step, most - #found)
  local entries = redis.pcall(ARGV[1], KEYS[1], at, ARGV[3], 'COUNT', asked)
  if entries.err then
    return redis.error_reply(entries.err)
  end
  for _, entry in ipairs(entries) do
    local size = size_of(entry)
    if size > room and #found > 0 then
      return {found, 1}
    end
    found[#found + 1], room, largest = entry, room - size, math.max(largest, size)
  end
  if #entries < asked then
    return {found, 0}
  end
  at = '(' .. entries[#entries][1]
  -- A few at a time: what does not fit after all is read in vain.
  step = math.max(1, math.min(2 * step, 16, math.floor(room / largest)))
end
return {found, 1}
