-- Return the ids and starts of batches from an entry on: see `tail`.
local function starts_from(stream, first, most)
  local found = {}
  for place, entry in ipairs(redis.call('XRANGE', stream, first, '+', 'COUNT', most)) do
    found[2 * place - 1] = entry[1]
    local batch = entry[2][2] or ''
    -- Bit 5 of the attributes, whose lower byte is at 22.
    local control = math.floor((string.byte(batch, 23) or 0) / 32) % 2 == 1
    found[2 * place] = string.sub(batch, 1, control and 96 or 61)
  end
  return found
end
