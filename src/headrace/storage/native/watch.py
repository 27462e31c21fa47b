"""Wait for new entries of streams, also from other programs, with XREAD BLOCK on separate connections.

In a cluster, one command cannot wait for streams of several slots, so the watcher polls.

CLIENT UNBLOCK ends a wait to add a stream. An unwatched stream stays until its next entry: consumers return soon, and
each change costs two commands.

Redis scans all streams of a blocked client at each entry. Valkey, and Redis since 7.2, also do so when XGROUP CREATE
... MKSTREAM creates a key: 9,000 partitions took 36 s on one connection.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

import hiredis
import structlog

from headrace.storage.errors import Unreachable
from headrace.storage.layout.native import parts_of
from headrace.storage.redis.connection import Connection
from headrace.storage.redis.shards import Shards
from headrace.topics.errors import StorageUnavailable

Woken = Callable[[str | None], None]
"""Called with the id of the last entry, or None if that is unknown."""

_ENTRIES = 2
"""Entries that one wait may return. A single one is known to be the last."""
MOST_STREAMS = 250
"""Maximum number of streams per connection."""
_RETRY_S = 0.05
_UNBLOCK_AGAIN_S = 0.001
_LAST_UNBLOCK_S = 1.0
"""Seconds that a server waits at its end for CLIENT UNBLOCK."""
_SHORT_BLOCK_MS = 100
_TURN_S = 0.02
_NO_STREAM_S = 1.0
"""Seconds between checks of a key that is no stream."""
_log = structlog.get_logger("headrace.storage.native")


class Watcher(Protocol):
    """Waits for entries."""

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """Call `woken` once when the stream has an entry after the id. Only one watcher per stream."""

    def unwatch(self, stream: str) -> None:
        """Stop waiting for a stream, whose key may be gone."""

    async def close(self) -> None:
        """Stop all waits."""


def watcher(url: str, shards: Shards) -> Watcher:
    """Return a watcher for the streams of these servers."""
    return StreamWatchers(url, shards) if isinstance(shards, Connection) else TurnsWatcher(shards)


class TurnsWatcher:
    """Polls all watched streams."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._waiting: dict[str, tuple[str, Woken]] = {}
        """Stream -> the id to wait after, and the callback."""
        self._looking: dict[str, asyncio.Task[None]] = {}
        """Polls in flight, at most one per stream."""
        self._task: asyncio.Task[None] | None = None
        self._any = asyncio.Event()

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """See `Watcher`."""
        self._waiting[stream] = after, woken
        self._any.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, stream: str) -> None:
        """See `Watcher`."""
        self._waiting.pop(stream, None)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._any.clear()
                await self._any.wait()
            for stream in self._waiting.keys() - self._looking.keys():
                self._looking[stream] = asyncio.create_task(self._look(stream))
            # A silent server must not delay the streams of others.
            if self._looking:
                await asyncio.wait(self._looking.values(), timeout=_TURN_S)
            for stream, task in tuple(self._looking.items()):
                if task.done():
                    del self._looking[stream]
                    error = task.exception()
                    if error is not None and not isinstance(error, StorageUnavailable):
                        _log.error("waiting for entries failed", stream=stream, exc_info=error)
            await asyncio.sleep(_TURN_S)

    async def _look(self, stream: str) -> None:
        if stream not in self._waiting:
            return
        after, woken = self._waiting[stream]
        reply = await self._shards.at(stream).call("XREAD", "COUNT", _ENTRIES, "STREAMS", stream, after)
        if isinstance(reply, Exception) or not reply or self._waiting.get(stream) != (after, woken):
            return
        del self._waiting[stream]
        ((_, entries),) = reply
        # A full reply may not include the last entry.
        woken(entries[-1][0].decode() if len(entries) < _ENTRIES else None)

    async def close(self) -> None:
        """See `Watcher`."""
        if self._task is not None:
            tasks = (self._task, *self._looking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class StreamWatchers:
    """Waits with a connection per `MOST_STREAMS` streams."""

    def __init__(self, url: str, other: Connection) -> None:
        """Prepare; see `StreamWatcher`."""
        self._url = url
        self._other = other
        self._streams: dict[StreamWatcher, int] = {}
        """Number of streams of each."""
        self._of: dict[str, StreamWatcher] = {}

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """See `Watcher`."""
        found = self._of.get(stream)
        if found is None:
            found = next((each for each, count in self._streams.items() if count < MOST_STREAMS), None)
            found = self._of[stream] = found or StreamWatcher(self._url, self._other)
            self._streams[found] = self._streams.get(found, 0) + 1
        found.watch(stream, after, woken)

    def unwatch(self, stream: str) -> None:
        """See `Watcher`."""
        found = self._of.pop(stream, None)
        if found is not None:
            self._streams[found] -= 1
            found.unwatch(stream)

    async def close(self) -> None:
        """See `Watcher`."""
        await asyncio.gather(*(each.close() for each in self._streams))


class StreamWatcher:
    """Waits on a connection that it opens on demand."""

    def __init__(self, url: str, other: Connection) -> None:
        """Prepare. `other` sends CLIENT UNBLOCK."""
        self._url = url
        self._connection = Connection(url, follows=other)
        self._other = other
        # The primary may have changed.
        other.on_lost.append(lambda _: self._connection.renew())
        self._after: dict[str, str] = {}
        self._woken: dict[str, Woken] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._client_id: int | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._no_streams: set[str] = set()
        self._block_ms = 0
        """Maximum milliseconds of a wait in Redis; 0: unlimited."""
        self._closed = False

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """See `Watcher`."""
        if self._closed:
            return
        self._woken[stream] = woken
        known = self._after.get(stream)
        if known is None:
            self._after[stream] = after
            self._restart()
        elif _less(after, known):
            # Earlier entries may not have been reported to this watcher.
            asyncio.get_running_loop().call_soon(self._wake, stream, None)

    def unwatch(self, stream: str) -> None:
        """See `Watcher`."""
        self._woken.pop(stream, None)
        self._after.pop(stream, None)

    def _wake(self, stream: str, last_id: str | None) -> None:
        woken = self._woken.pop(stream, None)
        if woken is not None:
            woken(last_id)

    def _restart(self) -> None:
        self._changed.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif self._interrupting is None:
            self._interrupting = asyncio.get_running_loop().create_task(self._interrupt())

    async def _interrupt(self) -> None:
        try:
            while self._changed.is_set():
                if self._client_id is not None:
                    with contextlib.suppress(StorageUnavailable):
                        answer = await self._other.call("CLIENT", "UNBLOCK", self._client_id)
                        if isinstance(answer, hiredis.ReplyError):
                            await self._wait_shortly(str(answer))
                            return
                await asyncio.sleep(_UNBLOCK_AGAIN_S)
        finally:
            self._interrupting = None

    async def _wait_shortly(self, reason: str) -> None:
        if self._block_ms:
            return
        self._block_ms = _SHORT_BLOCK_MS
        _log.warning("CLIENT UNBLOCK is rejected: entries are polled", reason=reason)
        waiting, self._connection = self._connection, Connection(self._url, follows=self._other)
        await waiting.close()

    async def _run(self) -> None:
        while True:
            try:
                if not self._connection.made:
                    await self._connection.open()
                await self._wait()
            except (StorageUnavailable, Unreachable):
                self._changed.clear()
                if self._client_id is not None:
                    # Watchers check for entries that they missed.
                    self._client_id = None
                    self._wake_all()
                await asyncio.sleep(_RETRY_S)
            except Exception:
                _log.exception("waiting for entries failed")
                await asyncio.sleep(_RETRY_S)

    def _wake_all(self) -> None:
        self._after.clear()
        for stream in tuple(self._woken):
            self._wake(stream, None)

    async def _wait(self) -> None:
        if not self._after:
            self._changed.clear()
            await self._changed.wait()
        if not self._connection.connected:
            raise StorageUnavailable("no connection to Redis")
        if self._client_id is None:
            self._client_id = await self._connection.call("CLIENT", "ID")
        self._changed.clear()
        streams = list(self._after)
        places = [self._after[stream] for stream in streams]
        reply = await self._connection.call(
            "XREAD", "COUNT", _ENTRIES, "BLOCK", self._block_ms, "STREAMS", *streams, *places
        )
        if isinstance(reply, hiredis.ReplyError):
            await self._refused(reply)
            return
        for key, entries in reply or ():
            stream = key.decode()
            if stream in self._woken:
                last_id = self._after[stream] = entries[-1][0].decode()
                self._no_streams.discard(stream)
                self._wake(stream, last_id if len(entries) < _ENTRIES else None)
            else:
                self._after.pop(stream, None)

    async def _refused(self, reply: Exception) -> None:
        """One key that is no stream fails the command: leave it out and retry later."""
        if str(reply).startswith("UNBLOCKED"):
            return
        if not str(reply).startswith("WRONGTYPE"):
            self._wake_all()
            _log.warning("cannot wait for entries", reason=str(reply))
            await asyncio.sleep(_RETRY_S)
            return
        for stream, after in tuple(self._after.items()):
            kind = await self._other.call("TYPE", stream)
            if kind not in (b"stream", b"none"):
                if stream not in self._no_streams:
                    self._no_streams.add(stream)
                    _log.warning("key is not a stream", key=stream, kind=str(kind))
                self._after.pop(stream, None)
                asyncio.get_running_loop().call_later(_NO_STREAM_S, self._try_again, stream, after)

    def _try_again(self, stream: str, after: str) -> None:
        if stream in self._woken and stream not in self._after and not self._closed:
            self._after[stream] = after
            self._restart()

    async def close(self) -> None:
        """See `Watcher`."""
        self._closed = True
        for task in (self._interrupting, self._task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._task is not None:
            if self._client_id is not None:
                with contextlib.suppress(StorageUnavailable, TimeoutError):
                    async with asyncio.timeout(_LAST_UNBLOCK_S):
                        await self._other.call("CLIENT", "UNBLOCK", self._client_id)
            await self._connection.close()


def _less(one: str, other: str) -> bool:
    return parts_of(one.encode()) < parts_of(other.encode())
