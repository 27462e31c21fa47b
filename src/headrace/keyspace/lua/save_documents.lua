#!lua flags=allow-oom
-- Apply changes to documents of several kinds, all of them, in their order.
-- KEYS: epoch, view, changes, then each kind's documents
-- ARGV: fencing epoch, the kinds (separated by spaces), then changes:
--       'S' which of the kinds, id, document | 'D' which of the kinds, id
-- Answer: OK. Error: FENCED.
--
-- Where there is a view, other brokers are told.
-- allow-oom: deleting a stream writes down that it is gone, and is what makes room again.
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'k', 'documents', 'n', ARGV[2])
end
local place = 3
while place <= #ARGV do
  local key = KEYS[3 + tonumber(ARGV[place + 1])]
  if ARGV[place] == 'S' then
    redis.call('HSET', key, ARGV[place + 2], ARGV[place + 3])
    place = place + 4
  else
    redis.call('HDEL', key, ARGV[place + 2])
    place = place + 3
  end
end
return 'OK'
