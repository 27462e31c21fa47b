#!lua flags=allow-oom
-- Apply changes to documents of several kinds, all of them, in their order.
-- KEYS: epoch, then each kind's documents
-- ARGV: fencing epoch, then changes: 'S' which of the kinds, id, document | 'D' which of the kinds, id
-- Answer: OK. Error: FENCED.
--
-- allow-oom: deleting a stream writes down that it is gone, and is what makes room again.
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
local place = 2
while place <= #ARGV do
  local key = KEYS[1 + tonumber(ARGV[place + 1])]
  if ARGV[place] == 'S' then
    redis.call('HSET', key, ARGV[place + 2], ARGV[place + 3])
    place = place + 4
  else
    redis.call('HDEL', key, ARGV[place + 2])
    place = place + 3
  end
end
return 'OK'
