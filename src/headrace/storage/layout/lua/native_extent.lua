#!lua flags=no-writes
-- Return the extent of a native partition, without its entries.
-- KEYS: stream, state
-- ARGV: bytes of a large entry; if the last reply had large ones, its length and last generated id
-- Reply: fields n, b, d and x of the state (texts); 1 if the first or last entry is large; then length, last generated
--         id, first id, number of entries ever added, or nothing if these are unchanged. A missing stream is empty.
--         Error: WRONGTYPE.
-- Parts: facts, size
--
-- XINFO returns the first and last entry, and no other command returns ids without entries. So for large entries it is
-- not repeated while the number of entries is the same and none follows the last one. An entry that was added and
-- deleted since is noticed later.
local state = redis.call('HMGET', KEYS[2], 'n', 'b', 'd', 'x')
local answer = {state[1] or '0', state[2] or '0', state[3] or '0', state[4] or '0', 0}
if ARGV[2] and redis.call('XLEN', KEYS[1]) == tonumber(ARGV[2])
  and #redis.call('XRANGE', KEYS[1], '(' .. ARGV[3], '+', 'COUNT', 1) == 0 then
  answer[5] = 1
  return answer
end
local facts = {length = 0}
if redis.call('EXISTS', KEYS[1]) == 1 then
  facts = facts_of(redis.call('XINFO', 'STREAM', KEYS[1]))
  for _, name in ipairs({'first-entry', 'last-entry'}) do
    if facts[name] and size_of(facts[name]) > tonumber(ARGV[1]) then
      answer[5] = 1
    end
  end
end
answer[6] = string.format('%.0f', facts['length'])
answer[7] = facts['last-generated-id'] or '0-0'
answer[8] = facts['recorded-first-entry-id'] or '0-0'
answer[9] = string.format('%.0f', facts['entries-added'] or facts['length'])
return answer
