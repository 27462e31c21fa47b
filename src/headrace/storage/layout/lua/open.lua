#!lua flags=allow-oom
-- Become leader of a log: fence earlier leaders, and return its start and end.
-- KEYS: stream, state, foreign, clean
-- ARGV: view (the server's epoch), least term, 'create' to create a missing log, its id in this case, 'resume' if
--       acknowledged batches will be stored first
-- Reply: {term, log start offset, log end offset, entries, newest time, bytes appended, snapshot offset, rows, log id,
--         entries moved aside, records missing at the end, last stored high watermark, '1' if it has transactions,
--         rows of cleaned segments, offset where the stream begins, next number of a segment, number of one that is
--         being written, '1' if the list of segments was lost and is made again}:
--         numbers of entries are integers, all others texts. Errors: FENCED, GONE, FOREIGN.
-- Parts: clock, epoch, facts, cleaned, cleaned_writes
--
-- XADD rejects ids up to the stream's last one. So setting that id to <term>-0 rejects all entries of earlier terms
-- that are in flight. Terms and leader epochs never repeat, even after Redis lost data: they are also seconds since
-- 2026. Entries that no leader wrote (a foreign XADD) are moved to the foreign stream, because they would block the
-- log.
--
-- allow-oom: a server that will trim must be able to start on a full Redis.
local stream, state_key, foreign = KEYS[1], KEYS[2], KEYS[3]
local kind = redis.call('TYPE', stream).ok
if kind ~= 'stream' and kind ~= 'none' then
  return redis.error_reply('FOREIGN ' .. stream .. ' is a ' .. kind .. ', not a stream that Headrace wrote')
end
-- Check all types first: an error in the middle would leave an incomplete change.
for _, pair in ipairs({{state_key, 'hash'}, {foreign, 'stream'}, {KEYS[4], 'hash'}}) do
  local key, expected = pair[1], pair[2]
  local found = redis.call('TYPE', key).ok
  if found ~= expected and found ~= 'none' then
    return redis.error_reply('FOREIGN ' .. key .. ' is a ' .. found .. ', not the ' .. expected .. ' that Headrace keeps there')
  end
end
local state = redis.call('HMGET', state_key, 'e', 'v', 'b', 'o', 'l', 'i', 't', 's', 'h', 'f', 'x')
local names = {'e', 'v', 'b', 'o', 'l', 'i', 't', 's', 'h', 'f', 'x'}

-- Return the field of a state that no leader can have written, or nil. Offsets have up to 16 digits, times 19.
local function garbled()
  local longest = {[7] = 19}
  for place, name in ipairs(names) do
    local value = state[place]
    if name == 'l' then
      local rest = value and string.gsub(value .. ' ', '%d+:%d+:%d+ ', '')
      if not rest or (rest ~= '' and rest ~= ' ') then
        return name
      end
    elseif name == 'i' then
      if not value or value == '' then
        return name
      end
    elseif not (value or name == 'h' or name == 'x') then
      return name
    elseif value then
      local digits = string.match(value, name == 't' and '^-?(%d+)$' or '^(%d+)$')
      if not digits or #digits > (longest[place] or 16) then
        return name
      end
    end
  end
end

local copied = redis.call('HGET', state_key, 'c')
if copied and not string.match(copied, '^%d+ %d+ ') then
  return redis.error_reply('FOREIGN field c of ' .. state_key .. ' is not what Headrace wrote')
end
local cleaned_rows, end_text, number_text, from_copy = list_in(KEYS[4], state_key)
local writing = redis.call('HGET', KEYS[4], 'writing')
local rest = string.gsub((cleaned_rows or '') .. ' ', '%d+:%d+:%d+:%d+:%-?%d+:%d+ ', '')
if rest ~= '' and rest ~= ' ' then
  return redis.error_reply('FOREIGN ' .. KEYS[4] .. ' has rows that Headrace did not write')
end
local segments, cleaned_end, next_number = cleaned_in(KEYS[4], state_key)

if redis.call('EXISTS', state_key) == 1 then
  if not state[6] and redis.call('HEXISTS', state_key, 'n') == 1 then
    return redis.error_reply('FOREIGN ' .. state_key .. ' is the state of a native partition')
  end
  local field = garbled()
  if field then
    return redis.error_reply('FOREIGN field ' .. field .. ' of ' .. state_key .. ' is not what Headrace wrote; without '
      .. 'that key the state is made again from the entries')
  end
end
local no = fenced(state[2])
if no then
  return no
end

local function id_parts(id)
  local term, following = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(term), tonumber(following)
end

-- Whether a leader wrote this entry: the batch's header and the id agree on the offset.
local function is_ours(entry)
  local fields, _, following = entry[2], id_parts(entry[1])
  if fields[1] ~= 'b' or fields[3] ~= 't' or fields[5] ~= 's' or #fields[2] < 61 then
    return false
  end
  return struct.unpack('>i8', fields[2]) + struct.unpack('>i4', fields[2], 24) + 1 == following
end

local function last_entry()
  return redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
end

-- Return the first entry from an id that a leader wrote.
local function first_of_ours(from)
  local entry = redis.call('XRANGE', stream, from, '+', 'COUNT', 1)[1]
  while entry and not is_ours(entry) do
    entry = redis.call('XRANGE', stream, '(' .. entry[1], '+', 'COUNT', 1)[1]
  end
  return entry
end

local info = kind == 'stream' and facts_of(redis.call('XINFO', 'STREAM', stream)) or {}

if not state[1] then
  local first = kind == 'stream' and first_of_ours('-')
  if not first and kind == 'stream' and info['length'] > 0 then
    return redis.error_reply('FOREIGN ' .. stream .. ' is a stream that Headrace did not write')
  end
  if first then
    -- The state was deleted or evicted: restore most of it from the entries.
    local rows, entry, most = {}, first, 0
    local base = struct.unpack('>i8', first[2][2])
    while entry do
      local term = id_parts(entry[1])
      rows[#rows + 1] = string.format('%.0f:%.0f:%.0f', struct.unpack('>i4', entry[2][2], 13),
        struct.unpack('>i8', entry[2][2]), term)
      most = term
      entry = first_of_ours(string.format('%.0f-0', term + 1))
    end
    -- Cleaned segments come before the stream.
    local start = string.format('%.0f', segments[1] and segments[1].first or base)
    local snapshot = string.format('%.0f', base)
    local trimmed = string.format('%.0f', tonumber(first[2][6]) - #first[2][2])
    state = {string.format('%.0f', most), ARGV[1], start, snapshot, table.concat(rows, ' '), ARGV[4], '-1', '0'}
    redis.call('HSET', state_key, 'b', start, 'o', snapshot, 'i', ARGV[4], 't', '-1', 's', '0', 'f', trimmed)
  elseif ARGV[3] ~= 'create' then
    return redis.error_reply('GONE the partition does not exist')
  else
    state = {'0', ARGV[1], '0', '0', '', ARGV[4], '-1', '0'}
    redis.call('HSET', state_key, 'b', '0', 'o', '0', 'i', ARGV[4], 't', '-1', 's', '0', 'f', '0')
  end
end

local highest = tonumber(state[1])
-- Terms are seconds up to 2^31: until 2060.
local seconds = math.floor(since_2026(2147483647 / 2 * 1000) / 1000)
local term = math.max(highest + 1, tonumber(ARGV[2]), seconds)
if term > 2147483647 then
  return redis.error_reply('FOREIGN ' .. state_key .. ' has a term beyond 2^31')
end

local set_aside = 0
local last = kind == 'stream' and last_entry()
while last and (id_parts(last[1]) > highest or not is_ours(last)) do
  redis.call('XADD', foreign, '*', 'id', last[1], unpack(last[2], 1, math.min(#last[2], 1000)))
  redis.call('XDEL', stream, last[1])
  set_aside = set_aside + 1
  last = last_entry()
end

-- The end is after the last entry, or later according to the state, if the last entries were deleted.
local log_end, newest, bytes = 0, state[7], state[8]
if last then
  local _, following = id_parts(last[1])
  log_end, newest, bytes = following, last[2][4], last[2][6]
end
local stored_end = log_end
local last_epoch, last_first
local kept = {}
for epoch, first, row_term in string.gmatch(state[5], '(%d+):(%d+):(%d+)') do
  kept[#kept + 1] = epoch .. ':' .. first .. ':' .. row_term
  last_epoch, last_first = epoch, tonumber(first)
end
log_end = math.max(log_end, last_first or 0, tonumber(state[4]), tonumber(state[3]), cleaned_end)
for _, name in ipairs({'last-generated-id', 'max-deleted-entry-id'}) do
  -- After a foreign entry, the last id is not ours.
  if info[name] and not (set_aside > 0 and name == 'last-generated-id') then
    local generated_term, generated = id_parts(info[name])
    if generated_term <= highest and generated > log_end and generated < 9007199254740991 then
      log_end = generated
    end
  end
end

local term_text = string.format('%.0f', term)
if kind == 'none' then
  redis.call('XADD', stream, term_text .. '-0', 'm', '')
  redis.call('XDEL', stream, term_text .. '-0')
else
  local deleted_term = id_parts(info['max-deleted-entry-id'])
  if set_aside > 0 or deleted_term >= term then
    -- Valkey allows no id below a deleted one, so reset that first.
    redis.call('XSETID', stream, '18446744073709551615-18446744073709551615', 'ENTRIESADDED', info['entries-added'],
      'MAXDELETEDID', '1-0')
  end
  redis.call('XSETID', stream, term_text .. '-0')
end

-- A leader without writes leaves no row.
if last_first == log_end then
  kept[#kept] = nil
end
local epoch_text = ARGV[5] == 'resume' and last_epoch or term_text
kept[#kept + 1] = epoch_text .. ':' .. string.format('%.0f', log_end) .. ':' .. term_text
local rows = table.concat(kept, ' ')
redis.call('HSET', state_key, 'e', term_text, 'v', ARGV[1], 'l', rows)
if end_text then
  -- The list and its copy are two keys, of which one may have been deleted.
  put_cleaned(KEYS[4], state_key, segments, cleaned_end, next_number)
end
if from_copy then
  -- Only the list said whether a pass was writing a segment. That has the last number, and no row.
  local listed = next_number == 0
  for _, row in ipairs(segments) do
    listed = listed or row.number == next_number - 1
  end
  if not listed then
    redis.call('UNLINK', KEYS[4] .. ':' .. string.format('%.0f', next_number - 1))
  end
end
local missing = 0
local known_end = math.max(stored_end, tonumber(state[3]), cleaned_end)
if log_end > known_end then
  missing = log_end - known_end
end
return {term_text, state[3], string.format('%.0f', log_end), redis.call('XLEN', stream), newest, bytes, state[4], rows,
  state[6], set_aside, string.format('%.0f', missing), state[9] or '0', state[11] or '',
  cleaned_rows or '', end_text or '0', number_text or '0', writing or '', from_copy and '1' or ''}
