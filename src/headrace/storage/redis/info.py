"""What Redis tells of itself, for metrics."""

from typing import Any

import redis.asyncio

from headrace.metrics.gauges import StoreFacts
from headrace.storage.redis.clients import on_primaries


async def store_facts(admin: redis.asyncio.Redis) -> StoreFacts:
    """Ask Redis (INFO): of a cluster all primaries together, and the replicas of the one that has fewest."""
    found: list[dict[str, Any]] = await on_primaries(admin, "info")

    def total(name: str) -> int:
        return sum(int(info.get(name, 0)) for info in found)

    return StoreFacts(
        memory_bytes=total("used_memory"),
        memory_max_bytes=total("maxmemory"),
        replicas=min(int(info.get("connected_slaves", 0)) for info in found),
        append_file_bytes=total("aof_current_size"),
        append_file_ok=all(info.get("aof_last_write_status", "ok") == "ok" for info in found),
    )
