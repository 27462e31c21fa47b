-- Remove a partition with its state.
-- KEYS: stream, state, producers, foreign, transactions, aborted
-- ARGV: view (the server's epoch)
-- Reply: number of removed keys. Error: FENCED.
-- Parts: epoch, kept_epoch
--
-- Appends cannot restore the stream, because they use XADD NOMKSTREAM.
local no = fenced(epoch_in(KEYS[2], 'v'))
if no then
  return no
end
return redis.call('UNLINK', unpack(KEYS))
