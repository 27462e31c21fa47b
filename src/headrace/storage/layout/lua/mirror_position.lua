-- Show a group's position as the last delivered id of the stream's Redis consumer group, made when it is missing.
-- KEYS: stream, state
-- ARGV: term, group, last delivered id
-- Answer: OK. Errors: FENCED, GONE.
-- Parts: term
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
if redis.pcall('XGROUP', 'SETID', KEYS[1], ARGV[2], ARGV[3]).err then
  -- No such group yet.
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], ARGV[3])
end
return redis.status_reply('OK')
