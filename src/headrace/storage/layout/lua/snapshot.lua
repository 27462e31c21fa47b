#!lua flags=allow-oom
-- Write down what an owner knows of a log: its producers, as of an offset, what lies behind it opening reads again; and
-- its high watermark, where readers wait for copies (else '').
-- KEYS: state, producers
-- ARGV: term, offset ('' while there are more to come), high watermark, then for each producer: its id and its value ('' removes it)
-- Answer: OK. Errors: FENCED, GONE.
-- Parts: term
--
-- allow-oom: nothing is trimmed beyond it, and trimming is what makes room again.
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
