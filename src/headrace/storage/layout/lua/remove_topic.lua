#!lua flags=allow-oom
-- Remove a topic and note that its records must be removed; or remove such a note; or only note streams, which must not
-- belong to a topic when they are removed.
-- KEYS: topics, epoch, deleted, view, changes
-- ARGV: fencing epoch, 'begin' | 'end' | 'unreadable' | 'note', topic id ('end', 'note': field of the note),
--       ['begin': virtual cluster, name]
--       ['note': the note]
--       ['unreadable', if the entry is unchanged: virtual cluster, name, entry, note]
-- Reply: begin: the stored topic, also if only its records remain; nil if another broker has deleted or moved it, so
-- that its records are not ours. End: 1, or 0 if no note exists. Error: FENCED.
-- Parts: epoch
--
-- With a view, this notifies other brokers. A topic of that name with another id stays.
-- allow-oom: deletions free memory.
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
-- Before the removal: after a crash in between, records without a topic would never be found.
redis.call('HSET', KEYS[3], ARGV[3], topic)
if redis.call('EXISTS', KEYS[4]) == 1 then
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', '10000', '*', 'k', 'topics', 'c', ARGV[4], 'n', ARGV[5])
end
redis.call('HDEL', KEYS[1], ARGV[5])
return topic
