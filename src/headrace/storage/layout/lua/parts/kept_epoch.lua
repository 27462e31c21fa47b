-- The fencing epoch in a field of a hash; false where there is none, or something else lies there: it fences nobody, and
-- can still be removed.
local function epoch_in(key, field)
  if redis.call('TYPE', key).ok ~= 'hash' then
    return false
  end
  local epoch = redis.call('HGET', key, field)
  return epoch and #epoch <= 16 and string.match(epoch, '^%d+$') or false
end
