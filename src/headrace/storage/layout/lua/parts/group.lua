-- Parts: facts
-- Return the facts of XINFO about a group, or nil if the stream or the group does not exist.
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
