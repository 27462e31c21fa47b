#!lua flags=allow-oom
-- Apply changes to a group, all of them, in their order.
-- KEYS: group, members, positions
-- ARGV: fencing epoch, then changes: 'H' header | 'M' member id, member | 'm' member id |
--       'P' partition, position | 'p' partition | 'B' topic, section | 'b' topic | 'X' (drop all it has)
-- Answer: OK. Error: FENCED.
--
-- allow-oom: those who read go on, and their positions are kept, while Redis is too full for those who write.
-- Parts: fences
local no = fenced(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
local dropped = false
local place = 2
while place <= #ARGV do
  local what = ARGV[place]
  dropped = what == 'X'
  if what == 'H' then
    redis.call('HSET', KEYS[1], 'header', ARGV[place + 1])
    place = place + 2
  elseif what == 'M' then
    redis.call('HSET', KEYS[2], ARGV[place + 1], ARGV[place + 2])
    place = place + 3
  elseif what == 'm' then
    redis.call('HDEL', KEYS[2], ARGV[place + 1])
    place = place + 2
  elseif what == 'P' then
    redis.call('HSET', KEYS[3], ARGV[place + 1], ARGV[place + 2])
    place = place + 3
  elseif what == 'p' then
    redis.call('HDEL', KEYS[3], ARGV[place + 1])
    place = place + 2
  elseif what == 'B' then
    redis.call('HSET', KEYS[1], 'balanced:' .. ARGV[place + 1], ARGV[place + 2])
    place = place + 3
  elseif what == 'b' then
    redis.call('HDEL', KEYS[1], 'balanced:' .. ARGV[place + 1])
    place = place + 2
  else
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
    place = place + 1
  end
end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
if dropped then
  -- The fence stands for an hour: what an earlier coordinator, or a lost connection, still has on its way must not bring
  -- the group back.
  redis.call('PEXPIRE', KEYS[1], 3600000)
else
  redis.call('PERSIST', KEYS[1])
end
return 'OK'
