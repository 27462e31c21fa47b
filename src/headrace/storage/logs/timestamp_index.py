"""Looks batches of a log up by time: what is the same for who owns the log and for who only reads it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from headrace.records.batch import peek
from headrace.topics.model import StoredBatch

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
