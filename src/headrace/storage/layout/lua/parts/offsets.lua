-- Offsets as texts: a double is not exact above 2^53, and ids of Redis programs may be higher.
-- Parts: ids
local MOST_OFFSET = '4611686018427387904'

local function larger(one, other)
  return #one > #other or (#one == #other and one > other)
end

-- ms * per + sequence, for ms as text and a sequence of up to `per`; at most 2^62.
local function offset_of(ms, sequence, per)
  local low = tonumber(string.sub(ms, -6)) * per + sequence
  local high = (tonumber(string.sub(ms, 1, -7)) or 0) * per + math.floor(low / 1000000)
  local offset = high == 0 and string.format('%.0f', low) or string.format('%.0f%06.0f', high, low % 1000000)
  return larger(offset, MOST_OFFSET) and MOST_OFFSET or offset
end

-- Return the first offset after an entry.
local function offset_after(id, per)
  local ms, sequence = parts_of(id)
  return offset_of(ms, math.min(tonumber(sequence) + 1, per), per)
end

-- Return the offset of an entry, or the last one of its millisecond.
local function offset_at(id, per)
  local ms, sequence = parts_of(id)
  return offset_of(ms, math.min(tonumber(sequence), per - 1), per)
end
