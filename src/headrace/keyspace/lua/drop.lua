-- Drop a partition with everything it has.
-- KEYS: stream, state, producers
-- ARGV: fencing epoch
-- Answer: how many keys went. Error: FENCED.
local epoch = redis.call('HGET', KEYS[2], 'e')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
