-- Return the members of a view in the form that brokers without transactions cannot read.
local function closed_members(members)
  return string.sub(members, 1, 1) == '[' and '{"members":' .. members .. '}' or members
end
