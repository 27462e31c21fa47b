"""The Redis client: protocol, connections, cluster shards, Sentinels, URLs, redis-py clients.

May import what `storage` may, and of its packages only `layout`.
"""
