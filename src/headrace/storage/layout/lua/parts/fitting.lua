-- Parts: size
-- Bytes of an entry. One that has more than `largest`, or more than so many fields, has them in place of its fields from
-- here on: no record is as large, and whoever reads on must pass it all the same.
local function weighed(entry, largest, fields)
  local size = size_of(entry)
  if size > largest or #(entry[2] or {}) > 2 * fields then
    entry[2] = size
  end
  return size
end

-- Entries as many as fit so many bytes, a few at a time: what one has shows only once it is read, and what does not fit
-- after all is read in vain.
-- from.next: answers so many entries behind an id; without an id, the first ones.
-- most, room: entries and bytes.
-- first: bytes that the first one may have, if it is a record.
-- largest, fields: as above.
-- Answer: entries; 1 if there may be more; bytes and id of the first one, where there are none as it has too many, else
--         0. An error of `next` in place of the entries.
local function fitting(from, most, room, first, largest, fields)
  local found, step, widest, after = {}, 1, 1, nil
  while #found < most and (room > 0 or #found == 0) do
    local asked = math.min(step, most - #found)
    local entries = from.next(after, asked)
    if entries.err then
      return entries, 0, 0
    end
    for _, entry in ipairs(entries) do
      local size = weighed(entry, largest, fields)
      if #found == 0 and size > first and entry[2] ~= size then
        return found, 1, size, entry[1]
      end
      if #found > 0 and size > room then
        return found, 1, 0
      end
      found[#found + 1], room, widest = entry, room - size, math.max(widest, size)
    end
    if #entries < asked then
      return found, 0, 0
    end
    after = entries[#entries][1]
    step = math.max(1, math.min(2 * step, 16, math.floor(room / widest)))
  end
  return found, 1, 0
end
