#!lua flags=allow-oom
-- Say that a broker is alive, and see what there is of the others.
-- KEYS: view, heartbeats, changes
-- ARGV: the broker's field in the heartbeats, its counter, the number of the view it knows
-- Answer: {number of the view or '', its members or '' where that is the one known, number of the view before it, id of
--         the last change, heartbeats (field, counter, ...)}, all texts.
--
-- allow-oom: a Redis that is full must not cost its brokers their places.
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
local view = redis.call('HMGET', KEYS[1], 'number', 'members', 'before')
local changes = redis.pcall('XINFO', 'STREAM', KEYS[3])
local last = '0-0'
if not changes.err then
  for place = 1, #changes, 2 do
    if changes[place] == 'last-generated-id' then
      last = changes[place + 1]
    end
  end
end
local members = view[1] ~= ARGV[3] and view[2] or ''
return {view[1] or '', members, view[3] or '0', last, redis.call('HGETALL', KEYS[2])}
