#!lua flags=allow-oom
-- Store the leader's state of a log: its producers as of an offset, after which a recovery reads batches, and its high
-- watermark if readers wait for replicas (otherwise '').
-- KEYS: state, producers
-- ARGV: term, offset ('' if more calls follow), high watermark, then for each producer: id and value ('' removes it)
-- Reply: OK. Errors: FENCED, GONE.
-- Parts: term
--
-- allow-oom: it is the limit of trims, which free memory.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
for place = 4, #ARGV, 2 do
  if ARGV[place + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[place])
  else
    redis.call('HSET', KEYS[2], ARGV[place], ARGV[place + 1])
  end
end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'o', ARGV[2])
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'h', ARGV[3])
end
return redis.status_reply('OK')
