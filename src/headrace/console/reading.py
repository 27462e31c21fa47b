"""Some records of a partition for a page: from an offset on, or those with a key, bounded in what is decompressed."""

from collections.abc import Callable
from functools import partial

import msgspec

from headrace.broker.broker import Broker
from headrace.broker.cache import Buffer
from headrace.broker.decompression import A_TURN, USUAL, Decompression
from headrace.broker.partition import Partition, Source
from headrace.broker.reading import read
from headrace.records.batch import peek
from headrace.records.errors import BatchError
from headrace.records.walk import Record, records

_MOST_DECOMPRESSED = 32 << 20
"""Bytes that one page decompresses, of all batches together."""
_ROOM = 4 << 20
"""Bytes that are asked for at a time."""
_MOST_KEPT = 8 << 20
"""Bytes of records that one page keeps: it shows the beginning of each."""
_EXPANSION = 8
"""How many times its size a compressed batch is taken to have decompressed."""


class Batch(msgspec.Struct, frozen=True):
    """The record batch in which a record lies."""

    base_offset: int
    next_offset: int
    count: int
    size: int
    codec: int
    leader_epoch: int


class Found(msgspec.Struct, frozen=True):
    """A record and where it lies."""

    record: Record
    batch: Batch


class Read(msgspec.Struct):
    """What was read."""

    found: list[Found] = []
    following: int = 0
    """The offset to go on from."""
    passed_over: int = 0
    """Batches that cannot be read, or are too large to be decompressed for a page."""


class _Sink:
    """Implements `headrace.broker.reading.Sink`."""

    def __init__(self, decompression: Decompression, most: int, wanted: Callable[[Record], bool]) -> None:
        self._decompression = decompression
        self._most = most
        self._wanted = wanted
        self._decompressed = self._kept = 0
        self.read = Read()

    def room(self) -> int:
        enough = len(self.read.found) >= self._most
        full = enough or self._decompressed >= _MOST_DECOMPRESSED or self._kept >= _MOST_KEPT
        return 0 if full else _ROOM

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        for batch in batches:
            if not self.room():
                break
            header = peek(batch)
            following = header.base_offset + header.span
            told = Batch(header.base_offset, following, header.count, header.size, header.codec, _epoch(batch))
            large = header.size * (_EXPANSION if header.codec else 1) > A_TURN
            self._decompressed += header.size * (_EXPANSION if header.codec else 1)
            work = partial(records, batch, header.base_offset, limit=USUAL)
            try:
                if large:
                    found = await self._decompression.usual(work)
                else:
                    await self._decompression.turn()
                    found = work()
                    self._decompression.count(max(header.size, 2048))
            except BatchError:
                self.read.passed_over += 1
                offset = following
                continue
            for record in found:
                if record.offset < offset:
                    continue
                if not self.room():
                    return record.offset
                if self._wanted(record):
                    self.read.found.append(Found(record, told))
                    self._kept += len(record.key or b"") + len(record.value or b"")
            offset = max(offset, following)
        return offset


def _epoch(batch: Buffer) -> int:
    return int.from_bytes(batch[12:16], "big", signed=True)


async def some(
    broker: Broker,
    decompression: Decompression,
    partition: Partition,
    offset: int,
    most: int,
    wanted: Callable[[Record], bool] = lambda _: True,
) -> Read:
    """At most so many records from an offset on; those before the log start are gone.

    Raises:
        UnknownTopic, StorageUnavailable.
    """
    offset = min(max(offset, partition.log_start), partition.log_end)
    granted = await broker.reads.acquire(_MOST_KEPT)
    try:
        sink = _Sink(decompression, most, wanted)
        sink.read.following = await read(partition, offset, sink)
        return sink.read
    finally:
        broker.reads.release(granted)
