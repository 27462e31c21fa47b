-- Drop a partition with everything it has.
-- KEYS: stream, state, producers, foreign
-- ARGV: view (the server's epoch)
-- Answer: how many keys went. Error: FENCED.
-- Parts: epoch, kept_epoch
--
-- Nothing brings the stream back: appends are XADD NOMKSTREAM.
local no = fenced(epoch_in(KEYS[2], 'v'))
if no then
  return no
end
return redis.call('UNLINK', unpack(KEYS))
