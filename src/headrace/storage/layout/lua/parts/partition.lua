-- Parts: epoch
-- As `fenced`, for a partition, which must exist.
local function refused(epoch)
  if not epoch then
    return redis.error_reply('GONE the partition does not exist')
  end
  return fenced(epoch)
end
