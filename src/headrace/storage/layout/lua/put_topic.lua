-- Create or replace a topic in the registry.
-- KEYS: topics, epoch, view, changes, deleted
-- ARGV: fencing epoch, 'create' | 'replace', virtual cluster, name, topic, the replaced topic, the field that notes it
--   for removal or ''
-- Reply: 1, or 0 if the topic to create exists, or the one to replace has changed. Error: FENCED.
-- Parts: epoch
--
-- With a view, this notifies other brokers.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
local present = redis.call('HGET', KEYS[1], ARGV[4])
if ARGV[2] == 'create' and present or ARGV[2] == 'replace' and present ~= ARGV[6] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[4], ARGV[5])
if ARGV[7] ~= '' then
  -- After a crash, streams without a topic would never be found.
  redis.call('HSET', KEYS[5], ARGV[7], ARGV[6])
end
if redis.call('EXISTS', KEYS[3]) == 1 then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', '10000', '*', 'k', 'topics', 'c', ARGV[3], 'n', ARGV[4])
end
return 1
