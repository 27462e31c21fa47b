-- Remove a partition with its state.
-- KEYS: stream, state, producers, foreign, transactions, aborted, clean, shares
-- ARGV: view (the server's epoch)
-- Reply: number of removed keys. Error: FENCED.
-- Parts: epoch, kept_epoch, cleaned
--
-- Appends cannot restore the stream, because they use XADD NOMKSTREAM.
local no = fenced(epoch_in(KEYS[2], 'v'))
if no then
  return no
end
-- The hash of segments goes after them: while Redis Cluster moves a slot, a segment may be elsewhere, which is an error.
local removed = 0
local kind = redis.call('TYPE', KEYS[7]).ok
if kind == 'hash' or kind == 'none' then
  -- A state of another type, which is dropped as well, has no copy of the list.
  local state = redis.call('TYPE', KEYS[2]).ok == 'hash' and KEYS[2] or KEYS[7]
  for _, row in ipairs((cleaned_in(KEYS[7], state))) do
    removed = removed + redis.call('UNLINK', KEYS[7] .. ':' .. string.format('%.0f', row.number))
  end
  local writing = redis.call('HGET', KEYS[7], 'writing')
  if writing then
    removed = removed + redis.call('UNLINK', KEYS[7] .. ':' .. writing)
  end
end
return removed + redis.call('UNLINK', unpack(KEYS))
