-- Show a committed offset as last delivered id of a Redis consumer group, which is created if missing.
-- KEYS: stream, state
-- ARGV: term, group, last delivered id
-- Reply: OK. Errors: FENCED, GONE.
-- Parts: term
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
if redis.pcall('XGROUP', 'SETID', KEYS[1], ARGV[2], ARGV[3]).err then
  -- The group does not exist yet.
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], ARGV[3])
end
return redis.status_reply('OK')
