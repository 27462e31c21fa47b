#!lua flags=allow-oom
-- Acknowledge dead letters of a share group whose copies exist, unless a program has taken them since.
-- KEYS: stream, state
-- ARGV: fencing epoch, group; then for each range its first and last id, and the number of its entries
-- Reply: number of acknowledged entries. Errors: FENCED, GONE, WRONGTYPE.
-- Parts: partition, share
local stream, group = KEYS[1], ARGV[2]
local no = refused(redis.call('HGET', KEYS[2], 'e'))
if no then
  return no
end
local ids = {}
for place = 3, #ARGV, 3 do
  local found, failed = pending_of(stream, group, ARGV[place], ARGV[place + 1], ARGV[place + 2], DEAD)
  if not found then
    return failed or 0
  end
  for _, entry in ipairs(found) do
    ids[#ids + 1] = entry[1]
  end
end
acknowledge(stream, group, ids)
return #ids
