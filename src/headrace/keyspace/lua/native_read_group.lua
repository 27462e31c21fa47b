#!lua flags=allow-oom
-- Entries for a member of a Redis consumer group, as many as fit so many bytes.
-- KEYS: stream, state
-- ARGV: fencing epoch, group, member, '>' for entries nobody was given yet or the id behind which to look among those
--       pending for the member, most entries, most bytes
-- Answer: entries (without fields where they were removed), the last few may be too large; 1 if there may be more.
--         Errors: FENCED, NOGROUP, WRONGTYPE.
--
-- What XREADGROUP gives is pending from then on and has to be answered, however large it is: so a few at a time.
local epoch = redis.call('HGET', KEYS[2], 'e')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
local group, member, after, most, room = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local found, step, largest = {}, 1, 1
while #found < most and room > 0 do
  local asked = math.min(step, most - #found)
  local reply = redis.pcall('XREADGROUP', 'GROUP', group, member, 'COUNT', asked, 'STREAMS', KEYS[1], after)
  if reply and reply.err then
    return redis.error_reply(reply.err)
  end
  local entries = reply and reply[1][2] or {}
  for _, entry in ipairs(entries) do
    local size = 0
    for _, part in ipairs(entry[2] or {}) do
      size = size + #part
    end
    found[#found + 1], room, largest = entry, room - size, math.max(largest, size)
  end
  if #entries < asked then
    return {found, 0}
  end
  if after ~= '>' then
    after = found[#found][1]
  end
  step = math.max(1, math.min(2 * step, 4, math.floor(room / largest)))
end
return {found, 1}
