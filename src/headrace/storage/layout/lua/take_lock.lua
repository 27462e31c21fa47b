#!lua flags=allow-oom
-- Take a lock. It expires, because its holder may die.
-- KEYS: lock, revisions of documents, mark that a broker waits for the lock
-- ARGV: token, time to live in ms
-- Reply: whether the lock was taken (1 or 0), then, if so, alternating kinds of documents and revisions.
--
-- allow-oom: changes under a lock may free memory.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  redis.call('SET', KEYS[3], '', 'PX', 200)
  return {0}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local answer = redis.call('HGETALL', KEYS[2])
table.insert(answer, 1, 1)
return answer
