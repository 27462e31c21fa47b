#!lua flags=allow-oom
-- Replace a share partition, as the leader of its log and under the state epoch in which it has begun.
-- KEYS: state, shares
-- ARGV: term, group, number of the write, state epoch, state
-- Reply: 1; 0 if the share partition has begun again, or was removed. Errors: FENCED, GONE.
-- Parts: term, shares
--
-- A write of a lost connection may come late, after later ones: its number is too low.
-- allow-oom: as for committed offsets.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local stored = redis.call('HGET', KEYS[2], ARGV[2])
if not stored then
  return 0
end
local epoch, term, number = written(stored)
if epoch ~= tonumber(ARGV[4]) then
  return 0
end
if term == ARGV[1] and number >= tonumber(ARGV[3]) then
  return redis.error_reply('FENCED write ' .. ARGV[3] .. ' is over, now ' .. string.format('%.0f', number))
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[1] .. ':' .. ARGV[3] .. ' ' .. ARGV[5])
return 1
