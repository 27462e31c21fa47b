-- Parts: facts
-- Return the members of a group in the groups hash. Other consumers of the Redis group are Redis programs.
local function members_of(groups, group)
  local known = redis.call('HGET', groups, group)
  return known and cjson.decode(known) or {}
end

-- Whether a Redis program is in the group. consumers: reply of XINFO CONSUMERS.
local function has_others(consumers, members)
  local ours = {}
  for _, member in ipairs(members) do
    ours[member] = true
  end
  for _, info in ipairs(consumers) do
    if not ours[facts_of(info)['name']] then
      return true
    end
  end
  return false
end
