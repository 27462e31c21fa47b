#!lua flags=no-writes
-- Return a share partition to the leader of its log.
-- KEYS: state, shares
-- ARGV: term, group
-- Reply: the stored text ('' for none). Errors: FENCED, GONE, FOREIGN.
-- Parts: term, shares
local no = refused(redis.call('HGET', KEYS[1], 'e')) or foreign(KEYS[2])
if no then
  return no
end
return redis.call('HGET', KEYS[2], ARGV[2]) or ''
