#!lua flags=allow-oom
-- Remove a native partition. An adopted stream stays.
-- KEYS: stream, state, producers, groups
-- ARGV: fencing epoch, 'keep' to keep the stream
-- Reply: number of removed keys. Error: FENCED.
-- Parts: epoch, kept_epoch
local no = fenced(epoch_in(KEYS[2], 'e'))
if no then
  return no
end
if ARGV[2] == 'keep' then
  return redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
