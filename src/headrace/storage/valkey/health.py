"""Early warnings for operators: a slow Redis, a full disk, no file descriptors."""

import asyncio
import errno
import os
import resource
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import redis.asyncio
import structlog

from headrace.metrics.counters import StoreFacts
from headrace.storage.free_space import SameDirectory
from headrace.storage.redis.clients import on_primaries
from headrace.topics.errors import TopicError


async def store_facts(admin: redis.asyncio.Redis) -> StoreFacts:
    """Return facts of INFO, summed over all primaries; `replicas` is the minimum."""
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


_LOOK_S: Final = 5.0
_SETTINGS_EVERY: Final = 6
"""Checks between queries of the settings: CONFIG SET or a failover may change them."""
_SLOW_S: Final = 0.5
"""Seconds after which a PING is slow, for example because of a large script, a fork, swapping or the network."""
_LOW_BYTES: Final = 1 << 30
_STEPS: Final = 4
"""The disk is logged again with each quarter of `_LOW_BYTES` less."""

_log = structlog.get_logger("headrace.storage.valkey")


class Watch:
    """Checks every few seconds, and logs changes."""

    def __init__(
        self,
        ping: Callable[[], Awaitable[None]],
        data: Path | None,
        free_bytes: Callable[[Path], int] | None = None,
        slow_s: float = _SLOW_S,
        evicting: Callable[[], Awaitable[str | None]] | None = None,
        look_at_journal: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        `ping` raises TopicError if Redis is down, which other parts log. `data` is the data directory, if local.
        `evicting` returns why Redis evicts records, empty if it does not, None if unknown.
        """
        self._ping = ping
        self._data = data
        self._free_bytes = free_bytes or SameDirectory()
        self._slow_s = slow_s
        self._evicting = evicting
        self._look_at_journal = look_at_journal
        self._evicts = False
        self._step = _STEPS
        self._lost = False
        """Whether the last check of the disk failed."""
        self._without = 0  # consecutive checks without a descriptor

    async def run(self) -> None:
        """Run all checks at intervals until canceled."""
        for number in count():
            await self.look_at_redis()
            if number % _SETTINGS_EVERY == 0:
                await self.look_at_settings()
            self.look_at_disk()
            self._look_at_journal()
            self.look_at_descriptors()
            await asyncio.sleep(_LOOK_S)

    async def look_at_redis(self) -> None:
        """Send one PING, and log a late response, also when it arrives."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = asyncio.ensure_future(self._ping())
        try:
            await asyncio.wait([asked], timeout=self._slow_s)
            if not asked.done():
                _log.warning("Redis is slow: no response to PING yet", after_ms=round(self._slow_s * 1000))
                await asyncio.wait([asked])
                if asked.exception() is None:
                    _log.info("Redis has responded", after_ms=round((loop.time() - began) * 1000))
        finally:
            asked.cancel()
        error = None if asked.cancelled() else asked.exception()
        if error is not None and not isinstance(error, TopicError):
            raise error

    async def look_at_settings(self) -> None:
        """Log when Redis begins or stops to evict keys."""
        if self._evicting is None:
            return
        why = await self._evicting()
        if why is None or bool(why) == self._evicts:
            return
        self._evicts = bool(why)
        if why:
            _log.error("Redis may remove acknowledged records", reason=why)
        else:
            _log.info("Redis no longer removes keys when it is full")

    def look_at_disk(self) -> None:
        """Log low space, each further decrease and its end, or a missing directory."""
        if self._data is None:
            return
        place = str(self._data)
        try:
            free = self._free_bytes(self._data)
        except OSError as error:
            if not self._lost:
                self._lost = True
                _log.error(
                    "the data directory is missing: no record is accepted until it is available again",
                    data=place,
                    reason=error.strerror,
                )
            return
        if self._lost:
            self._lost = False
            _log.info("the data directory is available again", data=place)
        before, self._step = self._step, min(_STEPS, free * _STEPS // _LOW_BYTES)
        if self._step < before:
            _log.warning("the disk is nearly full", data=place, free_mib=free >> 20)
        elif self._step == _STEPS and before < _STEPS:
            _log.info("the disk has free space again", data=place, free_mib=free >> 20)

    def look_at_descriptors(self) -> None:
        """Log when no file can be opened, and the end of it."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            self._without += 1
            if self._without == 1:
                _log.error(
                    "no file descriptors left (ulimit -n): new connections and files fail",
                    limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                    whose="this process" if error.errno == errno.EMFILE else "the machine",
                )
        else:
            if self._without:
                _log.info("file descriptors are available again", seconds_without=round(self._without * _LOOK_S))
            self._without = 0
