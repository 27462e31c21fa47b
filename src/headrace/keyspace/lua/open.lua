-- Open a partition for writing: fence older servers off, create what is missing, tell where the log starts and ends.
-- KEYS: stream, state
-- ARGV: fencing epoch
-- Answer: log start, next offset, leader epoch (texts). Error: FENCED.
local epoch = redis.call('HGET', KEYS[2], 'e')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if not epoch then
  -- f: bytes appended before the first entry that is left. l: leader epochs, each with its first offset.
  redis.call('HSET', KEYS[2], 'n', '0', 'b', '0', 't', '-1', 's', '0', 'f', '0', 'l', '0:0')
end
redis.call('HSET', KEYS[2], 'e', ARGV[1])
local state = redis.call('HMGET', KEYS[2], 'b', 'n', 'l')
local leader_epoch = string.match(state[3], '(%d+):%d+$')
return {state[1], state[2], leader_epoch}
