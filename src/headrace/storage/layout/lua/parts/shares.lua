-- Return an error if a key is neither missing nor the hash of share partitions.
local function foreign(key)
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return redis.error_reply('FOREIGN ' .. key .. ' is a ' .. kind .. ', not the hash that Headrace keeps there')
  end
end

-- Return the state epoch, the term and the number of the last write of a stored share partition.
local function written(text)
  local term, number, epoch = string.match(text, '^(%d+):(%d+) (%d+) ')
  return tonumber(epoch or 0), term, tonumber(number or 0)
end
