#!lua flags=allow-oom
-- Change the view, if it is still the one that the change was made from.
-- KEYS: view, heartbeats, epoch, changes
-- ARGV: number of the view that is expected ('0': none), number of the last view that is known, the expected one or one
--       that Redis has lost, the members of the new one, then each member's field in the heartbeats
-- Answer: {number of the view that is there now, its members, number of the view before it}, all texts.
--
-- Where the last known view is not the expected one, a failover has lost some: the new view names none before it, so that
-- everybody has missed one. Who saw which, and which were made since, nobody can tell.
-- A number is never used twice, even if Redis comes back with less than it had: it is also the milliseconds since 2026.
-- It is the fencing epoch of all that its members write.
-- Parts: clock
-- allow-oom: a Redis that is full must not keep a broker from taking over, since it is what trims.
local view = redis.call('HMGET', KEYS[1], 'number', 'members', 'before')
if (view[1] or '0') ~= ARGV[1] then
  return {view[1] or '0', view[2] or '[]', view[3] or '0'}
end
local epoch = tonumber(redis.call('GET', KEYS[3]) or '0')
local number = string.format('%.0f', math.max(epoch + 1, tonumber(ARGV[2]) + 1, since_2026(MOST_MS)))
local before = ARGV[1] == ARGV[2] and ARGV[1] or '0'
redis.call('HSET', KEYS[1], 'number', number, 'members', ARGV[3], 'before', before)
redis.call('SET', KEYS[3], number)
local present = {}
for place = 4, #ARGV do
  present[ARGV[place]] = true
end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not present[field] then
    redis.call('HDEL', KEYS[2], field)
  end
end
redis.call('XADD', KEYS[4], 'MAXLEN', '~', '10000', '*', 'k', 'view', 'n', number)
return {number, ARGV[3], before}
