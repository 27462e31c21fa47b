-- Convert the alternating names and values of XINFO to a table.
local function facts_of(answer)
  local facts = {}
  for place = 1, #answer, 2 do
    facts[answer[place]] = answer[place + 1]
  end
  return facts
end
