#!lua flags=no-writes
-- What there is in a native partition, without its entries.
-- KEYS: stream, state
-- Answer: length, last generated id, first id, entries ever added, then fields n, b, d and x of the state (texts). A
--         stream that is not there is empty. Error: WRONGTYPE.
-- Parts: facts
local state = redis.call('HMGET', KEYS[2], 'n', 'b', 'd', 'x')
local facts = {length = 0}
if redis.call('EXISTS', KEYS[1]) == 1 then
  facts = facts_of(redis.call('XINFO', 'STREAM', KEYS[1]))
end
return {
  string.format('%.0f', facts['length']), facts['last-generated-id'] or '0-0',
  facts['recorded-first-entry-id'] or '0-0', string.format('%.0f', facts['entries-added'] or facts['length']),
  state[1] or '0', state[2] or '0', state[3] or '0', state[4] or '0',
}
