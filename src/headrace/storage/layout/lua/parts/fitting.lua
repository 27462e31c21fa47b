-- Parts: size
-- Return the bytes of an entry. If it has more bytes or fields than the largest record, its fields are replaced by the
-- number of bytes, so that readers can skip it.
local function weighed(entry, largest, fields)
  local size = size_of(entry)
  if size > largest or #(entry[2] or {}) > 2 * fields then
    entry[2] = size
  end
  return size
end

-- Return as many entries as fit, read a few at a time, because their sizes are known only afterwards.
-- from.next: returns that many entries after an id, or the first ones.
-- most, room: entries and bytes.
-- first: maximum bytes of the first one, if it is a record.
-- largest, fields: as above.
-- Reply: entries; 1 if more may exist; bytes and id of the first one if it is too large, otherwise 0. An error of
--         `next` takes the place of the entries.
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
