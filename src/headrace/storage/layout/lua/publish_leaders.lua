#!lua flags=allow-oom
-- Publish the leaders of logs to all brokers.
-- KEYS: leaders, epoch, changes
-- ARGV: fencing epoch, then for each log: its stream, '<leader epoch>:<node id>'
-- Reply: OK. Error: FENCED.
-- Parts: epoch
--
-- Epochs only rise, so late messages have no effect. Known leaders are published again, because brokers that took a
-- moved topic for a new one have forgotten them.
-- allow-oom: a few bytes, without which clients do not find leaders.
local no = fenced(redis.call('GET', KEYS[2]))
if no then
  return no
end
local told = {}
local function number(leader)
  return tonumber(string.match(leader, '^%d+'))
end
for place = 2, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[place])
  if not known or number(known) <= number(ARGV[place + 1]) then
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
    told[#told + 1] = ARGV[place]
    told[#told + 1] = ARGV[place + 1]
  end
end
if #told > 0 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'k', 'leaders', 'n', table.concat(told, ' '))
end
return redis.status_reply('OK')
