-- Return the fencing epoch in a field of a hash, or false for a missing or invalid one, whose key can be removed.
local function epoch_in(key, field)
  if redis.call('TYPE', key).ok ~= 'hash' then
    return false
  end
  local epoch = redis.call('HGET', key, field)
  return epoch and #epoch <= 16 and string.match(epoch, '^%d+$') or false
end
