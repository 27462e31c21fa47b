#!lua flags=allow-oom
-- Remove a segment that replaces none yet: its pass has ended.
-- KEYS: state, clean, segment
-- ARGV: term, number of the segment
-- Reply: OK. Errors: FENCED, GONE.
-- Parts: term
--
-- allow-oom: this frees memory.
local no = refused(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
if redis.call('HGET', KEYS[2], 'writing') == ARGV[2] then
  redis.call('HDEL', KEYS[2], 'writing')
  redis.call('UNLINK', KEYS[3])
end
return redis.status_reply('OK')
