#!lua flags=allow-oom
-- Take a lock. It is free again by itself after a while: who holds it may die.
-- KEYS: lock, revisions of documents, what says that somebody waits for the lock
-- ARGV: token of who asks, ms until it is free
-- Answer: whether it is theirs now (1 or 0), then, if so, kinds of documents and their revisions in turn.
--
-- allow-oom: what is done under a lock may be what makes room again.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  redis.call('SET', KEYS[3], '', 'PX', 200)
  return {0}
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local answer = redis.call('HGETALL', KEYS[2])
table.insert(answer, 1, 1)
return answer
