"""When a Valkey or Redis rewrites its append-only file, where the server sees to that.

Redis' own rule (twice the size after the last rewrite) would rewrite all the time while records stream through and are
trimmed again. Ours waits until the file is large and most of it is records that are no longer there; and then for a
moment in which hardly anything is written: the rewrite is made in a fork, and each page of its memory that is
written to meanwhile, and for the first time after it, costs a page fault.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import redis.asyncio
import structlog

from headrace.storage.redis.clients import ERRORS, Primary

LEAST_BYTES = 1 << 30
LEAST_RATIO = 4
QUIET_BYTES = 1 << 20
"""By how much the file may have grown from one look to the next in a quiet moment."""
PATIENT_LOOKS = 60
"""How often a file that is due is left alone for want of a quiet moment."""
MOST_RATIO = 2
"""How much larger than what makes it due a file may become meanwhile: the disk is not endless."""
PERIOD_S, DUE_PERIOD_S = 60.0, 1.0
"""Between two looks, and between those at a file that is due."""

_log = structlog.get_logger("headrace.storage.valkey")


def rewrite_due(aof_bytes: int, live_bytes: int, least_bytes: int = LEAST_BYTES) -> bool:
    """Whether a file of `aof_bytes` is over `least_bytes` and four times the data that is alive."""
    return aof_bytes > max(least_bytes, LEAST_RATIO * live_bytes)


class Rewriting:
    """Looks at the file of one server from time to time."""

    def __init__(self, server: Primary, least_bytes: int = LEAST_BYTES) -> None:
        """Nothing has been seen yet."""
        self._server = server
        self._least_bytes = least_bytes
        self._before = 0
        """The size that it had at the last look."""
        self.looks = 0
        """How often it was found due and left alone, since the last rewrite."""

    async def look(self) -> bool:
        """Look once; whether a rewrite was started. Raises as `Primary.ask`."""
        info = await self._server.ask("info", "persistence", "memory")
        aof_bytes, live_bytes = int(info["aof_current_size"]), int(info["used_memory_dataset"])
        if info["aof_rewrite_in_progress"] or not rewrite_due(aof_bytes, live_bytes, self._least_bytes):
            self.looks = 0
            return False
        quiet = self.looks > 0 and aof_bytes - self._before <= QUIET_BYTES
        self._before = aof_bytes
        late = self.looks >= PATIENT_LOOKS or rewrite_due(aof_bytes // MOST_RATIO, live_bytes, self._least_bytes)
        if not (quiet or late):
            self.looks += 1
            return False
        self.looks = 0
        await self._server.ask("bgrewriteaof")
        at = {"server": self._server.name} if self._server.name else {}
        _log.info("rewriting the append-only file", bytes=aof_bytes, live_bytes=live_bytes, **at)
        return True


async def keep_rewriting(
    client: "redis.asyncio.Redis", pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Look again and again until cancelled; `pause` waits for so many seconds."""
    watch = Rewriting(Primary(client))
    while True:
        await pause(DUE_PERIOD_S if watch.looks else PERIOD_S)
        # A Valkey that does not answer now has graver troubles, which others report.
        with contextlib.suppress(*ERRORS):
            await watch.look()
