"""When the embedded Valkey rewrites its append-only file.

Its own rule (twice the size after the last rewrite) would rewrite all the time while records stream through and are
trimmed again. Ours waits until the file is large and most of it is records that are no longer there.
"""

import asyncio
import contextlib

import redis.asyncio
import structlog
from redis.exceptions import RedisError

LEAST_BYTES = 1 << 30
LEAST_RATIO = 4
PERIOD_S = 60.0

_log = structlog.get_logger("headrace.store")


def rewrite_due(aof_bytes: int, live_bytes: int, least_bytes: int = LEAST_BYTES) -> bool:
    """Whether a file of `aof_bytes` is over `least_bytes` and four times the data that is alive."""
    return aof_bytes > least_bytes and aof_bytes > LEAST_RATIO * live_bytes


async def rewrite_if_due(client: "redis.asyncio.Redis", least_bytes: int = LEAST_BYTES) -> bool:
    """Look once; whether a rewrite was started. Raises RedisError."""
    info = await client.info("persistence", "memory")
    aof_bytes, live_bytes = int(info["aof_current_size"]), int(info["used_memory_dataset"])
    if info["aof_rewrite_in_progress"] or not rewrite_due(aof_bytes, live_bytes, least_bytes):
        return False
    await client.bgrewriteaof()
    _log.info("rewriting the append-only file", bytes=aof_bytes, live_bytes=live_bytes)
    return True


async def keep_rewriting(client: "redis.asyncio.Redis", period_s: float = PERIOD_S) -> None:
    """Look every `period_s` seconds until cancelled."""
    while True:
        await asyncio.sleep(period_s)
        # A Valkey that does not answer now has graver troubles, which others report.
        with contextlib.suppress(RedisError, OSError):
            await rewrite_if_due(client)
