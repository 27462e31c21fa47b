-- Return an error if the fencing epoch ARGV[1] is below the stored `epoch` (false: none), otherwise nil.
local function fenced(epoch)
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
  end
end
