-- Append record batches, each on its own: one that is refused does not hold back the others.
-- KEYS: for each batch: stream, state, producers
-- ARGV: fencing epoch, now in ms, then for each batch: offset span, largest timestamp, batch,
--       producer id ('' for none), producer epoch, first sequence, the base offset it must get ('' for any,
--       '+N' for any from N on)
-- Answer: for each batch a text: its base offset; with "D" before it when the batch was there already; or "-" and an
--         error: FENCED, GONE (no such partition), FULL (no offsets are left), SEQUENCE, EPOCH, DISPLACED (its base
--         offset is not where the log ends), BEHIND (the log does not reach N yet), or Redis' own.
--
-- A batch that must get a certain base offset was acknowledged with it before: its sequence was checked then. One that
-- must go behind those may not take their place when they were refused.
--
-- Of one batch nothing is written before everything is checked: a script that fails half way is not undone. XADD comes
-- first, since it is what a Redis out of memory refuses, with an answer of this batch's own.
-- Numbers are doubles: whole up to 2^53, and only %.0f prints them so.
local function append(stream, state_key, producers, place)
  local span_text, time_text, batch = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  local state = redis.call('HMGET', state_key, 'e', 'n', 't', 's')
  if not state[1] then
    return '-GONE the partition does not exist'
  end
  local raise_epoch = false
  if state[1] ~= ARGV[1] then
    if tonumber(state[1]) > tonumber(ARGV[1]) then
      return '-FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. state[1]
    end
    raise_epoch = true
  end

  local span = tonumber(span_text)
  local certain = ARGV[place + 6]
  if string.byte(certain) == 43 then
    local least = string.sub(certain, 2)
    if tonumber(state[2]) < tonumber(least) then
      return '-BEHIND the log ends at ' .. state[2] .. ', before ' .. least
    end
    certain = ''
  elseif certain ~= '' and certain ~= state[2] then
    if tonumber(state[2]) >= tonumber(certain) + span then
      return 'D' .. certain
    end
    return '-DISPLACED the log ends at ' .. state[2] .. ', not at ' .. certain
  end
  local next_offset = tonumber(state[2]) + span
  if next_offset > 9007199254740991 then
    return '-FULL offset ' .. state[2] .. ' leaves no room for ' .. span_text .. ' more below 2^53'
  end

  local remembered
  local producer = ARGV[place + 3]
  if producer ~= '' then
    -- A producer's value: its epoch, its last use, then (first sequence, last sequence, base offset) of up to five
    -- batches, the newest first.
    local producer_epoch, first_text = ARGV[place + 4], ARGV[place + 5]
    local first = tonumber(first_text)
    local last = string.format('%.0f', (first + span - 1) % 2147483648)
    remembered = producer_epoch .. ' ' .. ARGV[2] .. ' ' .. first_text .. ' ' .. last .. ' ' .. state[2]
    local value = redis.call('HGET', producers, producer)
    if value then
      local known_epoch, batches, newest = string.match(value, '^(%d+) %d+ (%d+ (%d+) .+)$')
      if known_epoch == producer_epoch then
        local expected = (tonumber(newest) + 1) % 2147483648
        if first ~= expected and certain == '' then
          for known_first, known_last, base in string.gmatch(batches, '(%d+) (%d+) (%d+)') do
            if known_first == first_text and known_last == last then
              return 'D' .. base
            end
          end
          return '-SEQUENCE expected ' .. string.format('%.0f', expected) .. ', found ' .. first_text
        end
        -- Four of them stay; this batch is the fifth.
        local four = string.match(batches, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+')
        remembered = remembered .. ' ' .. (four or batches)
      elseif tonumber(producer_epoch) < tonumber(known_epoch) and certain == '' then
        return '-EPOCH producer epoch ' .. producer_epoch .. ' is over, now ' .. known_epoch
      elseif first ~= 0 and certain == '' then
        return '-SEQUENCE a new producer epoch begins with sequence 0, found ' .. first_text
      end
    end
  end

  local next_text = string.format('%.0f', next_offset)
  local newest = state[3]
  if tonumber(time_text) > tonumber(newest) then
    newest = time_text
  end
  local bytes = string.format('%.0f', tonumber(state[4]) + #batch)
  local added = redis.pcall('XADD', stream, next_text .. '-' .. span_text, 'b', batch, 't', newest, 's', bytes)
  if type(added) == 'table' and added.err then
    return '-' .. added.err
  end
  redis.call('HSET', state_key, 'n', next_text, 't', newest, 's', bytes)
  if raise_epoch then
    redis.call('HSET', state_key, 'e', ARGV[1])
  end
  if remembered then
    redis.call('HSET', producers, producer, remembered)
  end
  return state[2]
end

local answers = {}
for number = 1, #KEYS / 3 do
  local key = 3 * number
  answers[number] = append(KEYS[key - 2], KEYS[key - 1], KEYS[key], 7 * number - 4)
end
return answers
