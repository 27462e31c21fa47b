"""Read some records of a partition from an offset, with limited decompression."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.read import read
from headrace.broker.partition.source import Isolation, Source
from headrace.broker.runtime.decompression import A_TURN, HERE, USUAL, Decompression
from headrace.records.batch import BatchHeader, peek
from headrace.records.errors import BatchError, BatchTooLarge
from headrace.records.walk import Record, Some
from headrace.records.walk import some as some_of

if TYPE_CHECKING:
    from headrace.console.server_data import Figures

ISOLATION = Isolation.READ_COMMITTED
"""The console shows what applications see. A page reports how many records it leaves out."""
MOST_HEADERS = 100
"""Maximum headers shown of a record."""
_MOST_DECOMPRESSED = 32 << 20
"""Maximum bytes that one page decompresses."""
_ROOM = 2 << 20
"""Bytes per read."""
_FEW, _ROOM_OF_FEW = 10, 64 << 10
"""At most this many records are read with fewer bytes."""
_MOST_KEPT = 8 << 20
"""Maximum bytes of records that one page keeps, each truncated."""
_COMPRESSED = 64 << 10
"""Maximum bytes of a compressed batch that is decompressed on the event loop."""
_LEAST_COST = 2048
"""Minimum bytes charged per batch, even if it is empty."""


class Batch(msgspec.Struct, frozen=True):
    """A record's batch."""

    base_offset: int
    next_offset: int
    count: int
    size: int
    codec: int
    leader_epoch: int


class Found(msgspec.Struct, frozen=True):
    """A record and its location."""

    record: Record
    """With the first `MOST_HEADERS` of its headers."""
    headers: int
    """How many it has."""
    batch: Batch


class Read(msgspec.Struct):
    """The result."""

    found: list[Found] = []
    following: int = 0
    """The next offset."""
    passed_over: int = 0
    """Batches that are unreadable or too large for a page."""
    hidden: int = 0
    """Offsets of markers and of aborted transactions. 0 if offsets have gaps."""


class _Sink:
    def __init__(self, decompression: Decompression, most: int) -> None:
        self._decompression = decompression
        self._most = most
        self._room = _ROOM if most > _FEW else _ROOM_OF_FEW
        self._decompressed = self._kept = 0
        self.covered = 0
        """Offsets of the batches that were taken."""
        self.read = Read()

    def room(self) -> int:
        enough = len(self.read.found) >= self._most
        full = enough or self._decompressed >= _MOST_DECOMPRESSED or self._kept >= _MOST_KEPT
        return 0 if full else self._room

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        for batch in batches:
            if not self.room():
                break
            header = peek(batch)
            following = header.base_offset + header.span
            work = partial(
                some_of,
                batch,
                header.base_offset,
                offset,
                b"",
                most=self._most - len(self.read.found),
                most_bytes=_MOST_KEPT - self._kept,
                most_headers=MOST_HEADERS,
            )
            try:
                found = await self._few(header, work)
            except BatchError:
                self.read.passed_over += 1
                self._decompressed += header.size
            else:
                following = found.following
                self._decompressed += max(found.decompressed, header.size)
                told = Batch(
                    header.base_offset,
                    header.base_offset + header.span,
                    header.count,
                    header.size,
                    header.codec,
                    _epoch(batch),
                )
                for record, headers in found.records:
                    self.read.found.append(Found(record, headers, told))
                    self._kept += _size(record)
            self.covered += max(0, following - max(offset, header.base_offset))
            offset = max(offset, following)
        return offset

    async def _few(self, header: BatchHeader, work: "partial[Some]") -> Some:
        if header.size <= (_COMPRESSED if header.codec else A_TURN):
            await self._decompression.turn()
            cost = _LEAST_COST
            try:
                found = work(limit=HERE if header.codec else header.size)
                cost = max(cost, found.decompressed)
                return found
            except BatchTooLarge:
                cost = HERE
            finally:
                self._decompression.count(cost)
        return await self._decompression.usual(partial(work, limit=USUAL))


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _epoch(batch: Buffer) -> int:
    return int.from_bytes(batch[12:16], "big", signed=True)


async def some(
    figures: "Figures",
    broker: Broker,
    partition: Partition,
    offset: int,
    most: int,
) -> Read:
    """Return at most `most` records from an offset.

    Records before the log start offset are skipped.

    Raises: UnknownTopic, StorageUnavailable.
    """
    offset = min(max(offset, partition.log_start), partition.visible_end(ISOLATION))
    async with figures.reading:
        await broker.lane.turn()
        granted = await broker.reads.acquire(_MOST_KEPT)
        try:
            sink = _Sink(figures.clusters.decompression, most)
            sink.read.following = await read(
                partition, offset, sink, large_reads=broker.large_reads, isolation=ISOLATION
            )
            if not partition.has_gaps:
                sink.read.hidden = max(0, sink.read.following - offset - sink.covered)
            return sink.read
        finally:
            broker.reads.release(granted)
