-- Return the bytes of an entry's names and values; 0 if only its id is left.
local function size_of(entry)
  local size = 0
  for _, part in ipairs(entry[2] or {}) do
    size = size + #part
  end
  return size
end
