-- Return an error if the leader's term ARGV[1] is not the stored `term` (false: none), otherwise nil.
local function refused(term)
  if not term then
    return redis.error_reply('GONE the partition does not exist')
  end
  if term ~= ARGV[1] then
    return redis.error_reply('FENCED term ' .. ARGV[1] .. ' is over, now ' .. term)
  end
end
