"""The Redis client: protocol, connections, cluster shards, Sentinels, URLs, redis-py clients.

Of the packages of `storage`, it may import only `layout`.
"""
