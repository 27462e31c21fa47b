#!lua flags=allow-oom
-- Take a topic from one virtual cluster's registry to another's. Its records stay where they are.
-- KEYS: topics it is among, topics to be among, epoch, view, changes
-- ARGV: fencing epoch, name, the virtual cluster it is in, the one to be in
-- Answer: 1; 0 when it is not there; -1 when the other has one of that name. Error: FENCED.
-- Parts: epoch
--
-- Where there is a view, other brokers are told.
-- allow-oom: nothing becomes more by it.
local no = fenced(redis.call('GET', KEYS[3]))
if no then
  return no
end
local topic = redis.call('HGET', KEYS[1], ARGV[2])
if not topic then
  return 0
end
if redis.call('HSETNX', KEYS[2], ARGV[2], topic) == 0 then
  return -1
end
redis.call('HDEL', KEYS[1], ARGV[2])
if redis.call('EXISTS', KEYS[4]) == 1 then
  for place = 3, 4 do
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', '*', 'k', 'topics', 'c', ARGV[place], 'n', ARGV[2])
  end
end
return 1
