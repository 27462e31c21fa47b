#!lua flags=allow-oom
-- Raise the layout version before the first transactional batch, so that servers without transactions stay out.
-- KEYS: version, view
-- ARGV: layout version without transactions, with transactions
-- Reply: the layout version (text).
-- Parts: closed_members
--
-- A server that starts reads the version. A broker of an older version that was declared dead does not start again: it
-- reads the view, and cannot read this form.
-- allow-oom: records are rejected in a full Redis, and not this.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  local members = redis.call('HGET', KEYS[2], 'members')
  if members then
    redis.call('HSET', KEYS[2], 'members', closed_members(members))
  end
end
return redis.call('GET', KEYS[1])
