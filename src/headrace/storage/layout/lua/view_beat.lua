#!lua flags=allow-oom
-- Store a broker's heartbeat, and return those of all brokers.
-- KEYS: view, heartbeats, changes
-- ARGV: the broker's field in the heartbeats, its counter, the number of its known view
-- Reply: {number of the view or '', its members or '' if it is the known one, number of the previous view, id of the
--         last change, heartbeats (field, counter, ...)}, all texts.
--
-- allow-oom: brokers must stay members while Redis is full.
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
