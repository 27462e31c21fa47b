"""Settings of a Redis or Valkey, and rewrites of its append-only file.

Redis's rule (twice the size after the last rewrite) would rewrite all the time under a stream of records. Here, a file
is due when it is large and most of its records are trimmed. The rewrite waits for low write load, because writes during
a fork cause page faults.

An external Redis only for Headrace gets the same settings (`headrace.redis.manage`, decision 0066) at each check,
because CONFIG SET is lost in a restart or failover.
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
"""Maximum growth of the file between two checks in a low-load period."""
PATIENT_LOOKS = 60
"""Number of checks that a due file waits for low load."""
MOST_RATIO = 2
"""Factor by which a due file may grow until then."""
PERIOD_S, DUE_PERIOD_S = 60.0, 1.0
"""Seconds between checks, and between checks of a due file."""

_log = structlog.get_logger("headrace.storage.valkey")


def rewrite_due(aof_bytes: int, live_bytes: int, least_bytes: int = LEAST_BYTES) -> bool:
    """Return whether a file exceeds `least_bytes` and four times the live data."""
    return aof_bytes > max(least_bytes, LEAST_RATIO * live_bytes)


class AofRewriter:
    """Checks the file of one server."""

    def __init__(self, server: Primary, least_bytes: int = LEAST_BYTES) -> None:
        """Start without a check."""
        self._server = server
        self._least_bytes = least_bytes
        self._before = 0
        """Size at the last check."""
        self.looks = 0
        """Number of checks that found the file due and did not rewrite it."""

    async def look(self) -> bool:
        """Check once, and return whether a rewrite was started. Raises as `Primary.ask`."""
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
    """Check repeatedly until canceled."""
    watch = AofRewriter(Primary(client))
    while True:
        await pause(DUE_PERIOD_S if watch.looks else PERIOD_S)
        with contextlib.suppress(*ERRORS):
            await watch.look()


class RedisMaintenance:
    """Checks all primaries."""

    def __init__(self, admin: redis.asyncio.Redis, least_bytes: int = LEAST_BYTES) -> None:
        """Use a client."""
        self._admin = admin
        self._least_bytes = least_bytes
        self._watches: dict[str, AofRewriter] = {}
        self._refused: dict[str, str] = {}
        """Name of a primary -> last logged failure. The empty name is a cluster without a topology."""

    async def look(self) -> float:
        """Apply settings and start due rewrites; return the seconds until the next check."""
        try:
            found = await primaries(self._admin)
        except ERRORS as error:
            self._tell(Primary(self._admin), str(error))
            return PERIOD_S
        self._watches = {
            each.name: self._watches.get(each.name) or AofRewriter(each, self._least_bytes) for each in found
        }
        # Log a failure of a server again after it was absent.
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
        if self._refused.get(server.name) == reason:
            return
        self._refused[server.name] = reason
        _log.warning(
            "Redis cannot be tuned: see docs/guides/external-redis.md, or leave out headrace.redis.manage",
            reason=reason,
            **_at(server),
        )

    async def keep_looking(self, wait_s: float, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Check repeatedly until canceled, first after `wait_s`."""
        while True:
            await pause(wait_s)
            wait_s = await self.look()


async def _is_settled(server: Primary) -> bool:
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
