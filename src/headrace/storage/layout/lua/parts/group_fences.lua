-- Whether one fencing number of a group is above another. Each is that of a view and, behind a point, how many writes its
-- server had given up: a double does not hold both, so they are compared one after the other.
local function above(one, other)
  local view, given_up = string.match(one, '^(%d+)%.?(%d*)$')
  local other_view, other_given_up = string.match(other, '^(%d+)%.?(%d*)$')
  if tonumber(view) ~= tonumber(other_view) then
    return tonumber(view) > tonumber(other_view)
  end
  return tonumber('0' .. given_up) > tonumber('0' .. other_given_up)
end

-- Why the server is refused whose fencing number is ARGV[1], where `epoch` is the last that counts (false: none); or nil.
local function fenced(epoch)
  -- What is no number fences nobody: it is written over.
  if epoch and string.match(epoch, '^%d+%.?%d*$') and above(epoch, ARGV[1]) then
    return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
  end
end
