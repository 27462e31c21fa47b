-- Parts: facts
-- What XINFO tells of one group of a stream; nil where the stream or the group is not there.
local function group_facts(stream, group)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = facts_of(info)
    if facts['name'] == group then
      return facts
    end
  end
  return nil
end
