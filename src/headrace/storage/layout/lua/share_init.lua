#!lua flags=allow-oom
-- Begin a share partition under a state epoch, unless this or a later one has begun.
-- KEYS: shares
-- ARGV: state epoch, group, state
-- Reply: 1; 0 if this state epoch had begun. Errors: FENCED, FOREIGN.
-- Parts: shares, epoch
--
-- allow-oom: as for committed offsets.
local alien = foreign(KEYS[1])
if alien then
  return alien
end
local stored = redis.call('HGET', KEYS[1], ARGV[2])
local epoch = stored and written(stored)
local no = fenced(epoch)
if no then
  return no
end
if epoch and epoch == tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[2], '0:0 ' .. ARGV[3])
return 1
