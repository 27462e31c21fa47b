#!lua flags=allow-oom
-- Take a topic out of the registry and note that its records are still to go; or strike that note out; or only note
-- streams, which no topic may have when they are looked for.
-- KEYS: topics, epoch, deleted, view, changes
-- ARGV: fencing epoch, 'begin' | 'end' | 'unreadable' | 'note', topic id ('end', 'note': field of the note), ['begin': virtual cluster, name]
--       ['note': what is noted]
--       ['unreadable', where the entry has to be what it was: virtual cluster, name, entry, what is noted]
-- Answer: begin: the topic as it was stored, also where its records are still to go; nil: somebody else has deleted or
-- moved it, and its records are not ours to drop. End: 1, or 0 when there was nothing to do. Error: FENCED.
-- Parts: epoch
--
-- Where there is a view, other brokers are told. A topic of that name with another id is another one, and stays.
-- allow-oom: deleting a topic is what makes room again.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
if ARGV[2] == 'end' then
  return redis.call('HDEL', KEYS[3], ARGV[3])
end
if ARGV[2] == 'note' then
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
  return 1
end
local topic = redis.call('HGET', KEYS[1], ARGV[5])
if ARGV[2] == 'unreadable' then
  if topic ~= ARGV[6] then
    return 0
  end
  topic = ARGV[7]
elseif not topic or not string.find(topic, '"id":"' .. ARGV[3] .. '"', 1, true) then
  return redis.call('HGET', KEYS[3], ARGV[3])
end
-- Records without a topic would never be found again, should the server die between the two.
redis.call('HSET', KEYS[3], ARGV[3], topic)
if redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', '*', 'k', 'topics', 'c', ARGV[4], 'n', ARGV[5])
end
redis.call('HDEL', KEYS[1], ARGV[5])
return topic
