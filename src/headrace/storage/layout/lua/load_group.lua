#!lua flags=allow-oom
-- Read a group, and fence older servers: their writes in flight are rejected.
-- KEYS: group, members, positions, pending
-- ARGV: fencing epoch
-- Reply: header ('' for none), members, committed offsets (field, value, ...), balanced sections, pending offsets (field, value, ...),
--        other fields of the group, such as members of newer kinds (field, value, ...).
--        Error: FENCED.
--
-- allow-oom: a server must be able to start on a full Redis.
-- Parts: group_fences
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return redis.error_reply('FOREIGN ' .. key .. ' is a ' .. kind .. ', not the hash that Headrace keeps there')
  end
end
local no = fenced(redis.call('HGET', KEYS[1], 'e'))
if no then
  return no
end
redis.call('HSET', KEYS[1], 'e', ARGV[1])
local header = ''
local sections, others = {}, {}
local fields = redis.call('HGETALL', KEYS[1])
for place = 1, #fields, 2 do
  if fields[place] == 'header' then
    header = fields[place + 1]
  elseif string.sub(fields[place], 1, 9) == 'balanced:' then
    table.insert(sections, fields[place + 1])
  elseif fields[place] ~= 'e' then
    table.insert(others, fields[place])
    table.insert(others, fields[place + 1])
  end
end
local members, positions = redis.call('HVALS', KEYS[2]), redis.call('HGETALL', KEYS[3])
local pending = redis.call('HGETALL', KEYS[4])
if header == '' and #sections == 0 and #members == 0 and #positions == 0 and #pending == 0 and #others == 0 then
  -- The fence of a missing group lasts a minute; that of a deleted group lasts longer.
  if redis.call('PTTL', KEYS[1]) < 60000 then
    redis.call('PEXPIRE', KEYS[1], 60000)
  end
end
return {header, members, positions, sections, pending, others}
