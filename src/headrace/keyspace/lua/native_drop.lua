#!lua flags=allow-oom
-- Drop a native partition; an adopted stream stays as it is.
-- KEYS: stream, state, producers, groups
-- ARGV: fencing epoch, 'keep' to leave the stream where it is
-- Answer: how many keys went. Error: FENCED.
local epoch = redis.call('HGET', KEYS[2], 'e')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if ARGV[2] == 'keep' then
  return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
