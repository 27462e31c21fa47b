-- Compare entry ids by length, then as text, because a double cannot hold them.
local function parts_of(id)
  return string.match(id, '^(%d+)-(%d+)$')
end

local function less(one, other)
  local ms, sequence = parts_of(one)
  local other_ms, other_sequence = parts_of(other)
  if ms ~= other_ms then
    return #ms < #other_ms or (#ms == #other_ms and ms < other_ms)
  end
  if #sequence ~= #other_sequence then
    return #sequence < #other_sequence
  end
  return sequence < other_sequence
end
