-- Offsets as texts, to the digit: a double does not hold all above 2^53, which ids of Redis programs may stand for.
-- Parts: ids
local MOST_OFFSET = '4611686018427387904'

local function larger(one, other)
  return #one > #other or (#one == #other and one > other)
end

-- ms * per + sequence, for ms as text and a sequence of up to `per`; 2^62 at most.
local function offset_of(ms, sequence, per)
  local low = tonumber(string.sub(ms, -6)) * per + sequence
  local high = (tonumber(string.sub(ms, 1, -7)) or 0) * per + math.floor(low / 1000000)
  local offset = high == 0 and string.format('%.0f', low) or string.format('%.0f%06.0f', high, low % 1000000)
  return larger(offset, MOST_OFFSET) and MOST_OFFSET or offset
end

-- The first offset above an entry.
local function offset_after(id, per)
  local ms, sequence = parts_of(id)
  return offset_of(ms, math.min(tonumber(sequence) + 1, per), per)
end

-- The offset of an entry; for an id that fits none the last of its millisecond.
local function offset_at(id, per)
  local ms, sequence = parts_of(id)
  return offset_of(ms, math.min(tonumber(sequence), per - 1), per)
end
