-- Give the lease up, if it is still ours.
-- KEYS: lease
-- ARGV: token
-- Answer: 1 when it was.
if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
