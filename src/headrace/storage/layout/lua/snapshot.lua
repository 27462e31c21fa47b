#!lua flags=allow-oom
-- Store the leader's state of a log: its producers and transactions as of an offset, after which a recovery reads
-- batches, and its high watermark if readers wait for replicas (otherwise '').
-- KEYS: state, producers, and for a log with transactions: transactions, aborted
-- ARGV: term, offset ('' if more calls follow), high watermark,
--   with transactions: 'rebuilt' or '', oldest aborted marker to keep, number of open and of aborted ones, for each open
--   one its first offset and value ('' removes it), for each aborted one its marker's offset and value,
--   then for each producer: id and value ('' removes it)
-- Reply: OK. Errors: FENCED, GONE.
-- Parts: term
--
-- allow-oom: it is the limit of trims, which free memory.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local first = 4
if KEYS[3] then
  if ARGV[4] == 'rebuilt' then
    redis.call('UNLINK', KEYS[3], KEYS[4])
  end
  -- Another program may have removed the stored transactions. They then stay incomplete until they are rebuilt.
  local complete = ARGV[4] == 'rebuilt' or redis.call('HGET', KEYS[1], 'x') ~= '1'
    or tonumber(redis.call('HGET', KEYS[3], 'aborted') or '-1') == redis.call('ZCARD', KEYS[4])
  first = 8
  for _ = 1, tonumber(ARGV[6]) do
    if ARGV[first + 1] == '' then
      redis.call('HDEL', KEYS[3], 'o:' .. ARGV[first])
    else
      redis.call('HSET', KEYS[3], 'o:' .. ARGV[first], ARGV[first + 1])
    end
    first = first + 2
  end
  for _ = 1, tonumber(ARGV[7]) do
    redis.call('ZADD', KEYS[4], ARGV[first], ARGV[first + 1])
    first = first + 2
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', '(' .. ARGV[5])
  if complete then
    -- A recovery compares this with the sorted set.
    redis.call('HSET', KEYS[3], 'aborted', redis.call('ZCARD', KEYS[4]))
  else
    redis.call('HDEL', KEYS[3], 'aborted')
  end
  redis.call('HSET', KEYS[1], 'x', '1')
end
for place = first, #ARGV, 2 do
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
