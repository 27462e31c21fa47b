-- XINFO answers names and values in turn: the values by their names.
local function facts_of(answer)
  local facts = {}
  for place = 1, #answer, 2 do
    facts[answer[place]] = answer[place + 1]
  end
  return facts
end
