-- Why the owner of a log is refused whose term is ARGV[1], where `term` is the last that opened it (false: none); or nil.
local function refused(term)
  if not term then
    return redis.error_reply('GONE the partition does not exist')
  end
  if term ~= ARGV[1] then
    return redis.error_reply('FENCED term ' .. ARGV[1] .. ' is over, now ' .. term)
  end
end
