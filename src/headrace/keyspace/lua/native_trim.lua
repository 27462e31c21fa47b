#!lua flags=allow-oom
-- Retention of a native partition: XTRIM by the time of the ids, by about how many bytes are kept, or up to an offset.
-- KEYS: stream, state
-- ARGV: fencing epoch, sequence bits, oldest time to keep in ms or '', bytes to keep or '', offset to start at and its id
--       or ''
-- Answer: how many entries went. Errors: FENCED, GONE.
-- Parts: facts, offsets, partition, size
--
-- allow-oom: this is what makes room again.
local state = redis.call('HMGET', KEYS[2], 'e', 'b')
local no = refused(state[1])
if no then
  return no
end
local stream, per = KEYS[1], 2 ^ tonumber(ARGV[2])
local length = redis.call('EXISTS', stream) == 1 and redis.call('XLEN', stream) or 0
local log_start = state[2] or '0'
local went = 0

local function start_at(offset)
  log_start = larger(offset, log_start) and offset or log_start
end

-- Drop what lies before an id; the log starts after the last that went.
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
  -- As many entries stay as reach that size, counted from the newest: to the entry in short streams; a long one is
  -- judged by its newest ten thousand.
  -- What is looked at comes into memory: many at once only where they are small.
  local most, size, kept, at, enough = tonumber(ARGV[4]), 0, 0, '+', false
  local first_kept
  local step = 1
  while not enough and kept < 10000 do
    local before = size
    local entries = redis.call('XREVRANGE', stream, at, '-', 'COUNT', step)
    for _, entry in ipairs(entries) do
      if size >= most then
        enough = true
        break
      end
      size, kept, first_kept = size + size_of(entry), kept + 1, entry[1]
    end
    if #entries < step then
      break
    end
    at = '(' .. entries[#entries][1]
    step = size - before < 65536 and math.min(2 * step, 64) or math.max(1, math.floor(step / 2))
  end
  if enough then
    trim_to(first_kept or '18446744073709551615-18446744073709551615')
  elseif kept >= 10000 then
    local keep = math.ceil(most * kept / math.max(size, 1))
    if keep < redis.call('XLEN', stream) then
      went = went + redis.call('XTRIM', stream, 'MAXLEN', '=', string.format('%.0f', keep))
      local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
      start_at(offset_at(first[1], per))
    end
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
