-- Parts: epoch
-- As `fenced`, in a partition, which is to be there.
local function refused(epoch)
  if not epoch then
    return redis.error_reply('GONE the partition does not exist')
  end
  return fenced(epoch)
end
