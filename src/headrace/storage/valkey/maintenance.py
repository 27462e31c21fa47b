"""Settings of a Redis or Valkey, and when it rewrites its append-only file, where the server sees to both.

Redis' own rule (twice the size after the last rewrite) would rewrite all the time while records stream through and are
trimmed again. Ours waits until the file is large and most of it is records that are no longer there; and then for a
moment in which hardly anything is written: the rewrite is made in a fork, and each page of its memory that is
written to before it ends, and for the first time after it, costs a page fault.

An external Redis that is for Headrace alone is set as the embedded Valkey is (`headrace.redis.manage`). Redis' defaults
are for data that is changed more often than it grows; under a stream of records it snapshots, compresses and rewrites
most of the time (decision 0066). CONFIG SET lasts until that Redis is restarted, and another primary may take its
place: so it is set again with each look.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import redis.asyncio
import structlog

from headrace.storage.preflight import durability_of
from headrace.storage.redis.clients import ERRORS, Primary, primaries

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


class AofRewriter:
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


async def rewrite_aof_forever(
    client: "redis.asyncio.Redis", pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Look again and again until cancelled; `pause` waits for so many seconds."""
    watch = AofRewriter(Primary(client))
    while True:
        await pause(DUE_PERIOD_S if watch.looks else PERIOD_S)
        # A Valkey that does not answer now has graver troubles, which others report.
        with contextlib.suppress(*ERRORS):
            await watch.look()


class RedisMaintenance:
    """Looks at every primary from time to time."""

    def __init__(self, admin: redis.asyncio.Redis, least_bytes: int = LEAST_BYTES) -> None:
        """Nothing has been seen yet.

        Args:
            admin: a client; stays the caller's to close.
            least_bytes: of a file that is rewritten.
        """
        self._admin = admin
        self._least_bytes = least_bytes
        self._watches: dict[str, AofRewriter] = {}
        self._refused: dict[str, str] = {}
        """Name of a primary -> why it was not set, as was told last; of a cluster that told of none, no name."""

    async def look(self) -> float:
        """Set what differs, and start the rewrites that are due; seconds until the next look."""
        try:
            found = await primaries(self._admin)
        except ERRORS as error:
            self._tell(Primary(self._admin), str(error))
            return PERIOD_S
        self._watches = {
            each.name: self._watches.get(each.name) or AofRewriter(each, self._least_bytes) for each in found
        }
        # Those that are gone, and the cluster that told of none, have nothing to say any more: next time it is news.
        self._refused = {name: reason for name, reason in self._refused.items() if name in self._watches}
        for each in found:
            try:
                if await _is_settled(each):
                    await self._watches[each.name].look()
            except ERRORS as error:
                self._tell(each, str(error))
            else:
                self._refused.pop(each.name, None)
        return DUE_PERIOD_S if any(each.looks for each in self._watches.values()) else PERIOD_S

    def _tell(self, server: Primary, reason: str) -> None:
        """Once for each reason."""
        if self._refused.get(server.name) == reason:
            return
        self._refused[server.name] = reason
        _log.warning(
            "Redis cannot be tuned: see docs/guides/external-redis.md, or leave out headrace.redis.manage",
            reason=reason,
            **_at(server),
        )

    async def keep_looking(self, wait_s: float, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look again and again until cancelled, first after `wait_s`; `pause` waits for so many seconds."""
        while True:
            await pause(wait_s)
            wait_s = await self.look()


async def _is_settled(server: Primary) -> bool:
    """Set what differs; whether the server has an append-only file to look after. Raises as `Primary.ask`."""
    told = await durability_of(server)
    if wanted := told.better():
        for name, value in wanted.items():
            await server.ask("config_set", name, value)
        _log.info(
            "Redis settings changed", **{name.replace("-", "_"): value for name, value in wanted.items()}, **_at(server)
        )
    return told.append_only == "yes"


def _at(server: Primary) -> dict[str, str]:
    return {"server": server.name} if server.name else {}
