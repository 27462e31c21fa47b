"""A log that another server owns, as Redis has it: `broker.ports.LogLook`. It is read and never written."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Self

from headrace.records.batch import peek
from headrace.storage.layout import entries, partition
from headrace.storage.layout.keys import state_of
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import StoredBatch

# Looks batches of a log up by time: what is the same for who owns the log and for who only reads it.
_SCAN_BATCHES = 16


class Searching(ABC):
    """A log, or logs, that can be read."""

    @abstractmethod
    async def settle(self, stream: str) -> None:
        """Return when all that was acknowledged so far is in Redis."""

    @abstractmethod
    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """At most `count` batches up to offset `end`, the one that holds `offset` first; see `LogLookup.read`."""

    @abstractmethod
    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        """What the script `find_timestamp` answers: the batch that the entries' times lead to, the newest time."""

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """The first batch that has a record with this timestamp (ms) or a later one."""
        await self.settle(stream)
        found, _ = await self._find(stream, timestamp)
        if found is None or peek(found.batch).max_timestamp >= timestamp:
            return found
        # Its time came from a batch that was trimmed, or from its arrival: the one looked for lies behind it.
        async for stored in self._scan(stream, found.next_offset):
            if peek(stored.batch).max_timestamp >= timestamp:
                return stored
        return None

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """The first batch that holds the log's largest timestamp; None when no batch has one."""
        await self.settle(stream)
        found, last = await self._find(stream, "max")
        largest = -1 if found is None else peek(found.batch).max_timestamp
        if found is None or largest == last:
            return found if largest >= 0 else None
        # As above, but here it may also lie before.
        best, largest = None, -1
        async for stored in self._scan(stream, 0):
            newest = peek(stored.batch).max_timestamp
            if newest > largest:
                best, largest = stored, newest
        return best

    async def _scan(self, stream: str, offset: int) -> AsyncIterator[StoredBatch]:
        while found := await self.read(stream, offset, _SCAN_BATCHES):
            for stored in found:
                yield stored
            offset = found[-1].next_offset


class LogSnapshot(Searching):
    """One log, between its start and its end of a moment ago.

    All that is in its stream counts: whoever owns the log next begins behind it, so it is never taken back.
    """

    def __init__(
        self,
        scripts: Scripts,
        stream: str,
        high_watermark: int,
        log_start: int,
        next_offset: int,
        epochs: LeaderEpochs | None,
    ) -> None:
        """Use `look`. `epochs` None: nobody has opened the log yet."""
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.next_offset = next_offset
        self._scripts = scripts
        self._stream = stream
        self.epochs = epochs

    @classmethod
    async def look(cls, scripts: Scripts, stream: str) -> Self:
        """See where a log starts and ends. Raises StorageUnavailable."""
        answer = await scripts.run("extent", [stream, state_of(stream)])
        return cls(scripts, stream, partition.high_watermark(answer), *partition.extent(answer))

    async def settle(self, stream: str) -> None:
        """Return at once: what another server owns is read as Redis has it."""

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """At most `count` batches up to offset `end`, or the log's, the one that holds `offset` first."""
        assert stream == self._stream
        end = self.next_offset if end is None else min(end, self.next_offset)
        if self.epochs is None or offset >= end:
            return []
        first, last = entries.range_start(self.epochs, offset), entries.range_end(self.epochs, end)
        while True:
            connection = self._scripts.shards.at(stream)
            raw = checked(await connection.call("XRANGE", stream, first, last, "COUNT", count, reads=True))
            found = entries.decode(raw)
            if found or not raw:
                return found
            # Entries that somebody else wrote; the owner sets them aside.
            first = f"({raw[-1][0].decode()}"

    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        if self.epochs is None:
            return None, -1
        entry, newest = await self._scripts.run("find_timestamp", [stream, state_of(stream)], wanted)
        return (entries.decode([entry])[0] if entry else None), int(newest)
