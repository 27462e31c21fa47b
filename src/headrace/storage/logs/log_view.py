"""Read-only view of a log that another server leads: `broker.log_ports.LogLook`."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Self

from headrace.records.batch import peek
from headrace.storage.layout import entries, partition
from headrace.storage.layout import segments as segment_rows
from headrace.storage.layout.keys import clean_of, state_of
from headrace.storage.layout.transaction_index import ARGUMENTS, HEADERS_AT_ONCE, TransactionIndex, keys
from headrace.storage.logs import segments
from headrace.storage.logs.log_state import aborted_between
from headrace.storage.redis.replies import checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.model import StoredBatch
from headrace.topics.segments import CleanedLog
from headrace.topics.transactions import AbortedTransaction, Producers, Transactions

_SCAN_BATCHES = 16


class Searching(ABC):
    """One or more readable logs."""

    @abstractmethod
    async def settle(self, stream: str) -> None:
        """Wait until Redis has all acknowledged batches."""

    @abstractmethod
    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """Return at most `count` batches up to `end`, beginning with that of `offset`; see `LogLookup.read`."""

    @abstractmethod
    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        """Return the reply of the script `find_timestamp`."""

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """Return the first batch with a record of this timestamp (ms) or later."""
        await self.settle(stream)
        found, _ = await self._find(stream, timestamp)
        if found is None or peek(found.batch).max_timestamp >= timestamp:
            return found
        # A trimmed batch or an arrival set its time: the wanted batch follows.
        async for stored in self._scan(stream, found.next_offset):
            if peek(stored.batch).max_timestamp >= timestamp:
                return stored
        return None

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """Return the first batch with the log's largest timestamp, or None."""
        await self.settle(stream)
        found, last = await self._find(stream, "max")
        largest = -1 if found is None else peek(found.batch).max_timestamp
        if found is None or largest == last:
            return found if largest >= 0 else None
        # As above, but the wanted batch may also precede it.
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
    """One log between its start and end offsets at the time of `look`.

    The next leader continues after all of its batches, so they are final.
    """

    def __init__(
        self,
        scripts: Scripts,
        stream: str,
        high_watermark: int,
        log_start: int,
        next_offset: int,
        epochs: LeaderEpochs | None,
        cleaned: CleanedLog,
    ) -> None:
        """Use `look`. `epochs` is None for a log without a leader so far."""
        self.cleaned = cleaned
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.next_offset = next_offset
        self._scripts = scripts
        self._stream = stream
        self.epochs = epochs

    @classmethod
    async def look(cls, scripts: Scripts, stream: str) -> Self:
        """Read the start and end offsets of a log. Raises StorageUnavailable."""
        answer = await scripts.run("extent", [stream, state_of(stream), clean_of(stream)])
        cleaned = segment_rows.decode(answer[6:])
        return cls(scripts, stream, partition.high_watermark(answer), *partition.extent(answer), cleaned)

    async def transactions(self) -> Transactions | None:
        """See `broker.log_ports.LogLook`. Raises StorageUnavailable."""
        index = TransactionIndex(await self._scripts.run("transactions", keys(self._stream), *ARGUMENTS))
        while index.following is not None:
            index.add(await self._scripts.run("tail", [self._stream], index.following, HEADERS_AT_ONCE))
        try:
            return index.transactions()
        except ValueError:
            return None

    async def aborted(
        self, offset: int, before: int, end: int, producers: Producers | None = None
    ) -> list[AbortedTransaction]:
        """See `broker.log_ports.LogStorage.aborted`. Raises StorageUnavailable."""
        connection = self._scripts.shards.at(self._stream)
        return await aborted_between(connection, self._stream, offset, before, end, producers)

    async def settle(self, stream: str) -> None:
        """Do nothing: acknowledged batches of another server are read when Redis has them."""

    async def read(
        self, stream: str, offset: int, count: int, end: int | None = None, join: int | None = None
    ) -> list[StoredBatch]:
        """Return at most `count` batches up to `end` or the log end, beginning with that of `offset`."""
        assert stream == self._stream
        end = self.next_offset if end is None else min(end, self.next_offset)
        if self.epochs is None or offset >= end:
            return []
        epochs = self.epochs

        async def read_stream(first: int) -> list[StoredBatch]:
            return await self._in_stream(epochs, first, count, end)

        connection = self._scripts.shards.at(stream)
        found, self.cleaned = await segments.read_log(connection, stream, self.cleaned, read_stream, offset, count, end)
        return found

    async def _in_stream(self, epochs: LeaderEpochs, offset: int, count: int, end: int) -> list[StoredBatch]:
        if offset >= end:
            return []
        stream = self._stream
        first, last = entries.range_start(epochs, offset), entries.range_end(epochs, end)
        while True:
            connection = self._scripts.shards.at(stream)
            raw = checked(await connection.call("XRANGE", stream, first, last, "COUNT", count, reads=True))
            found = entries.decode(raw)
            if found or not raw:
                return found
            # Entries of another program: the leader moves them aside.
            first = f"({raw[-1][0].decode()}"

    async def _find(self, stream: str, wanted: int | str) -> tuple[StoredBatch | None, int]:
        if self.epochs is None:
            return None, -1
        entry, newest = await self._scripts.run("find_timestamp", [stream, state_of(stream), clean_of(stream)], wanted)
        return (entries.decode([entry])[0] if entry else None), int(newest)
