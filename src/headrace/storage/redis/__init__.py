"""The Redis client: protocol, connections, shards, Sentinel, URLs, redis-py clients."""
