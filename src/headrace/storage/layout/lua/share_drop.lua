#!lua flags=allow-oom
-- Remove a share partition.
-- KEYS: shares
-- ARGV: state epoch, group
-- Reply: number of removed fields. Errors: FENCED if it has begun under a later state epoch.
-- Parts: shares, epoch
--
-- allow-oom: this frees memory.
local stored = redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], ARGV[2])
local no = fenced(stored and written(stored))
if no then
  return no
end
return stored and redis.call('HDEL', KEYS[1], ARGV[2]) or 0
