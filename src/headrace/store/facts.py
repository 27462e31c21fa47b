"""What Redis tells of itself, for metrics."""

from typing import Any

import redis.asyncio

from headrace.metrics.facts import StoreFacts


async def store_facts(admin: redis.asyncio.Redis) -> StoreFacts:
    """Ask Redis (INFO). Raises what redis-py raises when it does not answer."""
    info: dict[str, Any] = await admin.info()
    return StoreFacts(
        memory_bytes=info["used_memory"],
        memory_max_bytes=info.get("maxmemory", 0),
        replicas=info.get("connected_slaves", 0),
        append_file_bytes=info.get("aof_current_size", 0),
        append_file_ok=info.get("aof_last_write_status", "ok") == "ok",
    )
