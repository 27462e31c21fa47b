-- Parts: cleaned
-- Write the list of segments, and its copy in the state: without the list, records would be missing unnoticed.
local function put_cleaned(key, state_key, rows, following, number)
  local texts = {}
  for place, row in ipairs(rows) do
    texts[place] = string.format('%.0f:%.0f:%.0f:%.0f:%.0f:%.0f', row.number, row.first, row.following, row.size,
      row.newest, row.batches)
  end
  local text = table.concat(texts, ' ')
  local following_text, number_text = string.format('%.0f', following), string.format('%.0f', number)
  redis.call('HSET', key, 'rows', text, 'end', following_text, 'next', number_text)
  redis.call('HSET', state_key, 'c', following_text .. ' ' .. number_text .. ' ' .. text)
  return {text, following_text, number_text}
end

-- Add batches from ARGV[first] on to a segment: next offset, batch and newest time of each. `row` counts them.
local function add_to(segment, row, first)
  for place = first, #ARGV, 3 do
    local batch, newest = ARGV[place + 1], ARGV[place + 2]
    row.size, row.newest, row.batches = row.size + #batch, tonumber(newest), row.batches + 1
    redis.call('XADD', segment, '0-' .. ARGV[place], 'b', batch, 't', newest, 's', string.format('%.0f', row.size))
  end
end
