#!lua flags=allow-oom
-- Move a topic to another virtual cluster. Its records stay where they are.
-- KEYS: topics of the source, topics of the target, epoch, view, changes
-- ARGV: fencing epoch, name, source cluster, target cluster
-- Reply: 1; 0 if it does not exist; -1 if the target has that name. Error: FENCED.
-- Parts: epoch
--
-- With a view, this notifies other brokers.
-- allow-oom: this needs no more memory.
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
