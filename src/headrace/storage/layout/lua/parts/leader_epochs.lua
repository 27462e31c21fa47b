-- Return the rows of leader epochs (see `layout/partition.py`): their texts, first offsets and terms.
local function epochs_in(text)
  local rows, firsts, terms = {}, {}, {}
  for epoch, first, term in string.gmatch(text, '(%d+):(%d+):(%d+)') do
    local place = #rows + 1
    rows[place], firsts[place], terms[place] = epoch .. ':' .. first .. ':' .. term, tonumber(first), term
  end
  return {rows = rows, firsts = firsts, terms = terms}
end

-- Return the place of the row of an offset.
local function row_of(epochs, offset)
  local row = 1
  while epochs.firsts[row + 1] and epochs.firsts[row + 1] <= offset do
    row = row + 1
  end
  return row
end

-- Return the id of the first entry that holds or follows an offset.
local function id_from(epochs, offset)
  return epochs.terms[row_of(epochs, offset)] .. '-' .. string.format('%.0f', offset + 1)
end
