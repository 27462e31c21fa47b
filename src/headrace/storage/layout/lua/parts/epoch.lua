-- Why the server is refused whose fencing epoch is ARGV[1], where `epoch` is the last that counts (false: none); or nil.
local function fenced(epoch)
  if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
    return redis.error_reply('FENCED epoch ' .. ARGV[1] .. ' is over, now ' .. epoch)
  end
end
