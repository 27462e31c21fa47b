-- Drop a partition with everything it has.
-- KEYS: stream, state, producers, foreign
-- ARGV: view (the server's epoch)
-- Answer: how many keys went. Error: FENCED.
--
-- Nothing brings the stream back: appends are XADD NOMKSTREAM.
local view = redis.call('HGET', KEYS[2], 'v')
if view and tonumber(view) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. view)
end
return redis.call('UNLINK', unpack(KEYS))
