#!lua flags=allow-oom
-- Apply changes to documents of several kinds atomically, in order.
-- KEYS: epoch, view, changes, revisions, lock, then each kind's documents
-- ARGV: fencing epoch, token of the required lock ('': none), the kinds (separated by spaces), then changes:
--       'S' number of the kind, id, document | 'D' number of the kind, id
-- Reply: with a view, each kind's new revision. Errors: FENCED, LOCK.
-- Parts: epoch
--
-- With a view, this notifies other brokers, and revisions show the changed kinds.
-- allow-oom: deleting a stream writes a document, and frees memory.
local no = fenced(redis.call('GET', KEYS[1]))
if no then
  return no
end
if ARGV[2] ~= '' and redis.call('GET', KEYS[5]) ~= ARGV[2] then
  return redis.error_reply('LOCK another broker may have made changes meanwhile: nothing was written, try again')
end
local revisions = {}
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', '10000', '*', 'k', 'documents', 'n', ARGV[3])
  for kind in string.gmatch(ARGV[3], '%S+') do
    table.insert(revisions, redis.call('HINCRBY', KEYS[4], kind, 1))
  end
end
local place = 4
while place <= #ARGV do
  local key = KEYS[5 + tonumber(ARGV[place + 1])]
  if ARGV[place] == 'S' then
    redis.call('HSET', key, ARGV[place + 2], ARGV[place + 3])
    place = place + 4
  else
    redis.call('HDEL', key, ARGV[place + 2])
    place = place + 3
  end
end
return revisions
