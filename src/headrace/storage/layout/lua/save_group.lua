#!lua flags=allow-oom
-- Apply changes to a group atomically, in order.
-- KEYS: group, members, positions, pending
-- ARGV: fencing epoch, then changes, each with the number of its arguments:
--       'H' header | 'M' (member id, member)... | 'm' member id... | 'P' (partition, offset)... | 'p' partition... |
--       'T' (producer and partition, pending offset)... | 't' producer and partition... |
--       'B' topic, section | 'b' topic | 'F' (field, value)... | 'f' field... | 'X' (drop the group)
-- Reply: OK. Error: FENCED.
--
-- allow-oom: consumers continue to commit while Redis is too full for producers.
-- Parts: group_fences
local function epoch_of(key)
  return redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, 'e')
end
local no = fenced(epoch_of(KEYS[1]))
if no then
  return no
end
-- A group can be dropped even if its keys have another type.
if #ARGV == 3 and ARGV[2] == 'X' and redis.call('TYPE', KEYS[1]).ok ~= 'hash' then
  redis.call('DEL', unpack(KEYS))
end
local filled = {M = KEYS[2], P = KEYS[3], T = KEYS[4], F = KEYS[1]}
local emptied = {m = KEYS[2], p = KEYS[3], t = KEYS[4], f = KEYS[1]}

-- A call per field takes three times as long for thousands of them. `unpack` has a limit.
local function many(command, key, first, last)
  for from = first, last, 1000 do
    redis.call(command, key, unpack(ARGV, from, math.min(from + 999, last)))
  end
end

local dropped = false
local place = 2
while place <= #ARGV do
  local what = ARGV[place]
  local first, last = place + 2, place + 1 + tonumber(ARGV[place + 1])
  dropped = what == 'X'
  if filled[what] then
    many('HSET', filled[what], first, last)
  elseif emptied[what] then
    many('HDEL', emptied[what], first, last)
  elseif what == 'H' then
    redis.call('HSET', KEYS[1], 'header', ARGV[first])
  elseif what == 'B' then
    redis.call('HSET', KEYS[1], 'balanced:' .. ARGV[first], ARGV[last])
  elseif what == 'b' then
    redis.call('HDEL', KEYS[1], 'balanced:' .. ARGV[first])
  else
    redis.call('DEL', unpack(KEYS))
  end
  place = last + 1
end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
if dropped then
  -- The fence lasts an hour: writes in flight of an earlier coordinator or a lost connection must not restore the
  -- group.
  redis.call('PEXPIRE', KEYS[1], 3600000)
else
  redis.call('PERSIST', KEYS[1])
end
return 'OK'
