#!lua flags=allow-oom
-- Open a partition for writing: fence older servers off, create what is missing, tell where the log starts and ends.
-- KEYS: stream, state
-- ARGV: fencing epoch
-- Answer: log start, next offset, leader epoch (texts). Errors: FENCED, FOREIGN (no stream of ours).
--
-- allow-oom: a server that starts while Redis is full must come up, since it is what trims.
local epoch = redis.call('HGET', KEYS[2], 'e')
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
end
if epoch then
  redis.call('HSET', KEYS[2], 'e', ARGV[1])
else
  local log_start, next_offset, newest, bytes, trimmed = '0', '0', '-1', '0', '0'
  if redis.call('EXISTS', KEYS[1]) == 1 then
    -- Records without their state: somebody deleted it, or Redis evicted it. The entries tell all of it again.
    local info, facts = redis.call('XINFO', 'STREAM', KEYS[1]), {}
    for place = 1, #info, 2 do
      facts[info[place]] = info[place + 1]
    end
    local first, last = facts['first-entry'], facts['last-entry']
    next_offset = string.match(facts['last-generated-id'], '^%d+')
    log_start = next_offset
    if first then
      if first[2][1] ~= 'b' or first[2][5] ~= 's' or last[2][5] ~= 's' then
        return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' is a stream that Headrace did not write')
      end
      local first_next, span = string.match(first[1], '^(%d+)-(%d+)$')
      log_start = string.format('%.0f', tonumber(first_next) - tonumber(span))
      newest, bytes = last[2][4], last[2][6]
      trimmed = string.format('%.0f', tonumber(first[2][6]) - #first[2][2])
    end
  end
  -- f: bytes appended before the first entry that is left. l: leader epochs, each with its first offset.
  redis.call('HSET', KEYS[2], 'e', ARGV[1], 'n', next_offset, 'b', log_start, 't', newest, 's', bytes, 'f', trimmed,
    'l', '0:0')
end
local state = redis.call('HMGET', KEYS[2], 'b', 'n', 'l')
local leader_epoch = string.match(state[3], '(%d+):%d+$')
return {state[1], state[2], leader_epoch}
