#!lua flags=no-writes
-- Return ids and sizes of the last entries below an id, the newest first.
-- KEYS: stream
-- ARGV: last id, after `(` if exclusive; maximum entries; maximum bytes
-- Reply: ids; 1 if more may exist; bytes of each. Error: WRONGTYPE.
-- Parts: size
--
-- Redis returns ids only with entries, so this reads about that many bytes, and at least one entry.
local at, most, room = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local ids, sizes, step, largest = {}, {}, 1, 1
while #ids < most and room > 0 do
  local asked = math.min(step, most - #ids)
  local entries = redis.pcall('XREVRANGE', KEYS[1], at, '-', 'COUNT', asked)
  if entries.err then
    return redis.error_reply(entries.err)
  end
  for _, entry in ipairs(entries) do
    local size = size_of(entry)
    ids[#ids + 1], sizes[#sizes + 1] = entry[1], size
    room, largest = room - size, math.max(largest, size)
  end
  if #entries < asked then
    return {ids, 0, sizes}
  end
  at = '(' .. ids[#ids]
  step = math.max(1, math.min(2 * step, 256, math.floor(room / largest)))
end
return {ids, 1, sizes}
