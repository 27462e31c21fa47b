#!lua flags=allow-oom
-- Open a native partition for writes: fence older servers, and check that its key can be a stream.
-- KEYS: stream, state
-- ARGV: fencing epoch, 'must' if the stream must exist
-- Reply: OK. Errors: FENCED, FOREIGN (no stream, or one of a log topic).
-- Parts: epoch, kept_epoch
--
-- allow-oom: a server that will trim must be able to start on a full Redis.
local kind = redis.call('TYPE', KEYS[2])['ok']
if kind ~= 'hash' and kind ~= 'none' then
  return redis.error_reply('FOREIGN key ' .. KEYS[2] .. ' is a ' .. kind .. ', not the hash that Headrace keeps there')
end
if ARGV[2] == 'must' and redis.call('HEXISTS', KEYS[2], 's') == 1 then
  return redis.error_reply('FOREIGN key ' .. KEYS[1] .. ' holds the record batches of a log topic')
end
local no = fenced(epoch_in(KEYS[2], 'e'))
if no then
  return no
end
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'stream' and (kind ~= 'none' or ARGV[2] == 'must') then
  local what = kind == 'none' and 'is not there' or 'is a ' .. kind .. ', no Redis Stream'
  return redis.error_reply('FOREIGN key ' .. KEYS[1] .. ' ' .. what)
end
redis.call('HSET', KEYS[2], 'e', ARGV[1])
redis.call('HSETNX', KEYS[2], 'n', '0')
redis.call('HSETNX', KEYS[2], 'b', '0')
redis.call('HSETNX', KEYS[2], 'd', '0')
redis.call('HSETNX', KEYS[2], 'x', '0')
return redis.status_reply('OK')
