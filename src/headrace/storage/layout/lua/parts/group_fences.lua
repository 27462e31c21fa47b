-- Whether one fencing number of a group is above another. Each has the view's number and, after a point, the number of
-- given-up writes. They are compared separately, because a double cannot hold both.
local function above(one, other)
  local view, given_up = string.match(one, '^(%d+)%.?(%d*)$')
  local other_view, other_given_up = string.match(other, '^(%d+)%.?(%d*)$')
  if tonumber(view) ~= tonumber(other_view) then
    return tonumber(view) > tonumber(other_view)
  end
  return tonumber('0' .. given_up) > tonumber('0' .. other_given_up)
end

-- Return an error if the fencing number ARGV[1] is below the stored `epoch` (false: none), otherwise nil.
local function fenced(epoch)
  -- An invalid number is overwritten.
  if epoch and string.match(epoch, '^%d+%.?%d*$') and above(epoch, ARGV[1]) then
    return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
  end
end
