"""A Redis that is for Headrace alone, set and seen to as the embedded Valkey is (`headrace.redis.manage`).

Redis' defaults are for data that is changed more often than it grows; under a stream of records it snapshots,
compresses and rewrites most of the time (decision 0066). CONFIG SET lasts until that Redis is started again, and
another primary may take its place: so it is set anew with each look.
"""

import asyncio
from collections.abc import Awaitable, Callable

import redis.asyncio
import structlog

from headrace.storage.preflight import told_by
from headrace.storage.redis.clients import ERRORS, Primary, primaries
from headrace.storage.valkey.rewrite import DUE_PERIOD_S, LEAST_BYTES, PERIOD_S, Rewriting

_log = structlog.get_logger("headrace.storage.valkey")


class Managing:
    """Looks at every primary from time to time."""

    def __init__(self, admin: redis.asyncio.Redis, least_bytes: int = LEAST_BYTES) -> None:
        """Nothing has been seen yet.

        Args:
            admin: a client; stays the caller's to close.
            least_bytes: of a file that is rewritten.
        """
        self._admin = admin
        self._least_bytes = least_bytes
        self._watches: dict[str, Rewriting] = {}
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
            each.name: self._watches.get(each.name) or Rewriting(each, self._least_bytes) for each in found
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
            "Redis cannot be managed: set it as sizing in docs/guides/operations.md says, or leave out "
            "headrace.redis.manage",
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
    told = await told_by(server)
    if wanted := told.better():
        for name, value in wanted.items():
            await server.ask("config_set", name, value)
        _log.info(
            "set Redis for a log", **{name.replace("-", "_"): value for name, value in wanted.items()}, **_at(server)
        )
    return told.append_only == "yes"


def _at(server: Primary) -> dict[str, str]:
    return {"server": server.name} if server.name else {}
