#!lua flags=allow-oom
-- Change the view, if it is still the expected one.
-- KEYS: view, heartbeats, epoch, changes, layout version
-- ARGV: number of the expected view ('0': none), number of the last known view, which Redis may have lost, layout
--       version with transactions, members of the new view, then each member's field in the heartbeats
-- Reply: {number of the present view, its members, number of the previous view}, all texts.
--
-- If the last known view is not the expected one, a failover has lost views. Then the new view names no previous one,
-- so that all brokers assume that they missed a view.
-- Numbers never repeat, even after Redis lost data: they are also milliseconds since 2026. The number is the fencing
-- epoch of all writes of its members.
-- From that layout version on, brokers without transactions cannot read the members (see `raise_layout`).
-- Parts: clock, closed_members
-- allow-oom: a broker that will trim must be able to take over on a full Redis.
local view = redis.call('HMGET', KEYS[1], 'number', 'members', 'before')
if (view[1] or '0') ~= ARGV[1] then
  return {view[1] or '0', view[2] or '[]', view[3] or '0'}
end
local epoch = tonumber(redis.call('GET', KEYS[3]) or '0')
local number = string.format('%.0f', math.max(epoch + 1, tonumber(ARGV[2]) + 1, since_2026(MOST_MS)))
local before = ARGV[1] == ARGV[2] and ARGV[1] or '0'
local members = ARGV[4]
if redis.call('GET', KEYS[5]) == ARGV[3] then
  members = closed_members(members)
end
redis.call('HSET', KEYS[1], 'number', number, 'members', members, 'before', before)
redis.call('SET', KEYS[3], number)
local present = {}
for place = 5, #ARGV do
  present[ARGV[place]] = true
end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not present[field] then
    redis.call('HDEL', KEYS[2], field)
  end
end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '10000', '*', 'k', 'view', 'n', number)
return {number, members, before}
