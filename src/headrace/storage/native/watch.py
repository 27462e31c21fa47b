"""Waits for entries of streams, whoever adds them: XREAD BLOCK on a connection of its own.

In a cluster one command cannot wait for streams of several slots: there each stream is looked at in turns.

On one server it can: one waits for a few hundred streams that somebody watches. Where another stream comes in, CLIENT
UNBLOCK ends the waiting, and it begins anew. A stream that nobody watches any more stays until something is added to
it: consumers come back every few hundred milliseconds, and each change costs two commands.

There is a connection for each few hundred streams, since Redis goes through all that one waits for whenever an entry
comes. Valkey, and Redis from 7.2 on, do so also where one of the keys comes into being without one, as groups do it
(XGROUP CREATE ... MKSTREAM): those of 9 000 partitions took 36 s where one connection waited for all of them.
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
"""Called with the id of the last entry; with None when the stream has to be looked at to know it."""

_ENTRIES = 2
"""Entries that wake: they come with all that is in them, which nobody looks at. One alone is known to be the last."""
MOST_STREAMS = 250
"""That one connection waits for."""
_RETRY_S = 0.05
_UNBLOCK_AGAIN_S = 0.001
_LAST_UNBLOCK_S = 1.0
"""How long a server that ends waits for Redis to be told that nobody waits any more."""
_SHORT_BLOCK_MS = 100
_TURN_S = 0.02
_NO_STREAM_S = 1.0
"""How often a key that is no stream is tried again."""
_log = structlog.get_logger("headrace.storage.native")


class Watcher(Protocol):
    """Wakes those who wait for entries."""

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """Call `woken` once, as soon as the stream has an entry behind the id `after`; one watcher per stream."""

    def unwatch(self, stream: str) -> None:
        """Nobody waits for this stream any more; its key may be gone."""

    async def close(self) -> None:
        """Wait for nothing any more."""


def watcher(url: str, shards: Shards) -> Watcher:
    """What waits for entries of streams on these servers, of that URL."""
    return StreamWatchers(url, shards) if isinstance(shards, Connection) else TurnsWatcher(shards)


class TurnsWatcher:
    """Looks every now and then at each stream that somebody waits for, all of them at once."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._waiting: dict[str, tuple[str, Woken]] = {}
        """Stream -> the id behind which something is waited for, and who does."""
        self._looking: dict[str, asyncio.Task[None]] = {}
        """The looks that are under way, one at most of a stream."""
        self._task: asyncio.Task[None] | None = None
        self._any = asyncio.Event()

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """Call `woken` once, as soon as the stream has an entry behind the id `after`; one watcher per stream."""
        self._waiting[stream] = after, woken
        self._any.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, stream: str) -> None:
        """Nobody waits for this stream any more; its key may be gone."""
        self._waiting.pop(stream, None)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._any.clear()
                await self._any.wait()
            for stream in self._waiting.keys() - self._looking.keys():
                self._looking[stream] = asyncio.create_task(self._look(stream))
            # A server that is silent holds up nobody who waits for streams of others.
            if self._looking:
                await asyncio.wait(self._looking.values(), timeout=_TURN_S)
            for stream, task in tuple(self._looking.items()):
                if task.done():
                    del self._looking[stream]
                    error = task.exception()
                    # A stream that cannot be looked at now is looked at again.
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
        # Where there are more than were asked for, this is not the last.
        woken(entries[-1][0].decode() if len(entries) < _ENTRIES else None)

    async def close(self) -> None:
        """Look no more."""
        if self._task is not None:
            tasks = (self._task, *self._looking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class StreamWatchers:
    """Wakes those who wait for entries, on a connection for each `MOST_STREAMS` of streams."""

    def __init__(self, url: str, other: Connection) -> None:
        """Prepare; as `StreamWatcher`."""
        self._url = url
        self._other = other
        self._streams: dict[StreamWatcher, int] = {}
        """How many each has."""
        self._of: dict[str, StreamWatcher] = {}

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """Call `woken` once, as soon as the stream has an entry behind the id `after`; one watcher per stream."""
        found = self._of.get(stream)
        if found is None:
            found = next((each for each, count in self._streams.items() if count < MOST_STREAMS), None)
            found = self._of[stream] = found or StreamWatcher(self._url, self._other)
            self._streams[found] = self._streams.get(found, 0) + 1
        found.watch(stream, after, woken)

    def unwatch(self, stream: str) -> None:
        """Nobody waits for this stream any more; its key may be gone."""
        found = self._of.pop(stream, None)
        if found is not None:
            self._streams[found] -= 1
            found.unwatch(stream)

    async def close(self) -> None:
        """Stop waiting and close the connections."""
        await asyncio.gather(*(each.close() for each in self._streams))


class StreamWatcher:
    """Wakes those who wait for entries. Its connection is made when somebody first does."""

    def __init__(self, url: str, other: Connection) -> None:
        """Prepare.

        Args:
            url: where Redis is.
            other: a connection that is not blocked, to end the waiting by; this one goes where that one is.
        """
        self._url = url
        self._connection = Connection(url, beside=other)
        self._other = other
        # Whatever the reason, the primary may be another one by now.
        other.on_lost.append(lambda _: self._connection.renew())
        self._after: dict[str, str] = {}
        self._woken: dict[str, Woken] = {}
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._client_id: int | None = None
        self._interrupting: asyncio.Task[None] | None = None
        self._no_streams: set[str] = set()
        self._block_ms = 0
        """How long Redis waits at most; 0: until something happens."""
        self._closed = False

    def watch(self, stream: str, after: str, woken: Woken) -> None:
        """Call `woken` once, as soon as the stream has an entry behind the id `after`; one watcher per stream."""
        if self._closed:
            return
        self._woken[stream] = woken
        known = self._after.get(stream)
        if known is None:
            self._after[stream] = after
            self._restart()
        elif _less(after, known):
            # What lies between was told to somebody else, or to nobody.
            asyncio.get_running_loop().call_soon(self._wake, stream, None)

    def unwatch(self, stream: str) -> None:
        """Nobody waits for this stream any more; its key may be gone."""
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
        """End the waiting, also where it is only just about to begin."""
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
        """This Redis does not let us end the waiting: from now on it has to end by itself, again and again."""
        if self._block_ms:
            return
        self._block_ms = _SHORT_BLOCK_MS
        _log.warning("CLIENT UNBLOCK is rejected: entries are polled", reason=reason)
        waiting, self._connection = self._connection, Connection(self._url, beside=self._other)
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
                    # Lost just now. What was added meanwhile is seen by those who look again.
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
                # Where there are more than were asked for, this is not the last.
                self._wake(stream, last_id if len(entries) < _ENTRIES else None)
            else:
                self._after.pop(stream, None)

    async def _refused(self, reply: Exception) -> None:
        """Redis does not wait so. One key that is no stream spoils it for all: it is left out, and tried again."""
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
        """Stop waiting and close the connection."""
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
