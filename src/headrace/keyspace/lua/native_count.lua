#!lua flags=no-writes
-- How many entries lie behind an id, counted as far as a limit: for groups whose lag Redis has lost track of.
-- KEYS: stream
-- ARGV: id, most entries to count
-- Answer: the number; the limit if there are that many or more.
local at, most, found = '(' .. ARGV[1], tonumber(ARGV[2]), 0
while found < most do
  local entries = redis.call('XRANGE', KEYS[1], at, '+', 'COUNT', 1000)
  found = found + #entries
  if #entries < 1000 then
    return found
  end
  at = '(' .. entries[#entries][1]
end
return most
