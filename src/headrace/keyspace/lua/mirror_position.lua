-- Show a group's position as the last delivered id of the stream's Redis consumer group, made when it is missing.
-- KEYS: stream, state
-- ARGV: fencing epoch, group, last delivered id
-- Answer: OK. Errors: FENCED, GONE.
local epoch = redis.call('HGET', KEYS[2], 'e')
if not epoch then
  return redis.error_reply('GONE the partition does not exist')
end
if tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
local moved = redis.pcall('XGROUP', 'SETID', KEYS[1], ARGV[2], ARGV[3])
if moved.err then
  -- No such group yet, or no stream: nothing was ever appended.
  redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[2], ARGV[3], 'MKSTREAM')
end
return 'OK'
