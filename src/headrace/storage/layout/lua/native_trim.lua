#!lua flags=allow-oom
-- Retention of a native partition: XTRIM by the time of ids, by the newest entries, or up to an offset.
-- KEYS: stream, state
-- ARGV: fencing epoch, sequence bits, oldest time to keep in ms or '', first id to keep or '', new start offset and its
--       id or '', maximum entries to keep or ''
-- Reply: number of removed entries. Errors: FENCED, GONE, RANGE.
-- Parts: facts, offsets, partition
--
-- RANGE: the new start is after the log end. Records before it would be unreadable.
-- allow-oom: this frees memory.
local state = redis.call('HMGET', KEYS[2], 'e', 'b', 'n')
local no = refused(state[1])
if no then
  return no
end
local stream, per = KEYS[1], 2 ^ tonumber(ARGV[2])
local length = redis.call('EXISTS', stream) == 1 and redis.call('XLEN', stream) or 0
local log_start = state[2] or '0'
local went = 0

if ARGV[5] ~= '' then
  local log_end = length == 0 and state[3] or '0'
  if redis.call('EXISTS', stream) == 1 then
    local after = offset_after(facts_of(redis.call('XINFO', 'STREAM', stream))['last-generated-id'], per)
    log_end = larger(after, log_end) and after or log_end
  end
  if larger(ARGV[5], log_end) then
    return redis.error_reply('RANGE offset ' .. ARGV[5] .. ' is beyond the log end, ' .. log_end)
  end
end

local function start_at(offset)
  log_start = larger(offset, log_start) and offset or log_start
end

-- Remove the entries before an id. The log starts after the last one.
local function trim_to(first)
  local last = redis.call('XREVRANGE', stream, '(' .. first, '-', 'COUNT', 1)[1]
  if last then
    went = went + redis.call('XTRIM', stream, 'MINID', '=', first)
    start_at(offset_after(last[1], per))
  end
end

if ARGV[3] ~= '' and length > 0 and tonumber(ARGV[3]) > 0 then
  trim_to(ARGV[3] .. '-0')
end
if ARGV[5] ~= '' then
  if length > 0 and ARGV[6] ~= '0-0' then
    trim_to(ARGV[6])
  end
  start_at(ARGV[5])
end
if ARGV[4] ~= '' and length > 0 then
  trim_to(ARGV[4])
end
if ARGV[7] ~= '' and tonumber(ARGV[7]) < length then
  local trimmed = redis.call('XTRIM', stream, 'MAXLEN', '=', ARGV[7])
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  if trimmed > 0 and first then
    went = went + trimmed
    start_at(offset_at(first[1], per))
  end
end
if log_start ~= state[2] or went > 0 then
  local removed = 0
  if redis.call('EXISTS', stream) == 1 then
    local facts = facts_of(redis.call('XINFO', 'STREAM', stream))
    removed = (facts['entries-added'] or facts['length']) - facts['length']
  end
  redis.call('HSET', KEYS[2], 'e', ARGV[1], 'b', log_start, 'd', string.format('%.0f', removed))
end
return went
