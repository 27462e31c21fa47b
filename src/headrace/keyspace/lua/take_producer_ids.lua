-- Take a block of producer ids.
-- KEYS: producer ids, epoch
-- ARGV: fencing epoch, how many
-- Answer: the first of them (text). Error: FENCED.
local epoch = redis.call('GET', KEYS[2])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
local first = redis.call('GET', KEYS[1])
redis.call('INCRBY', KEYS[1], ARGV[2])
return first or '0'
