"""Reading into a sink: whole batches, from memory or from storage, as far as the sink wants."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.read import read
from headrace.broker.partition.source import Isolation, Source
from headrace.broker.runtime.budget import NeedsRoom, ReadBudget
from headrace.records.batch import peek
from headrace.records.build import build
from headrace.records.walk import records
from headrace.topics.errors import OffsetOutOfRange, StorageUnavailable, UnknownTopic
from headrace.topics.model import Append


class Sink:
    """Keeps offsets; wants `room` bytes at a time, and at most `limit` records."""

    def __init__(self, room: int = 1 << 20, limit: int = 10**9) -> None:
        self.bytes = room
        self.limit = limit
        self.offsets: list[int] = []
        self.calls = 0
        self.widest = 0
        self.not_before_ms: int | None = None

    def room(self) -> int:
        return self.bytes if len(self.offsets) < self.limit else 0

    async def take(self, partition: Source, batches: list[Buffer], offset: int, not_before_ms: int | None) -> int:
        self.calls += 1
        self.widest = max(self.widest, len(batches))
        self.not_before_ms = not_before_ms
        for batch in batches:
            header = peek(batch)
            assert len(batch) == header.size
            for record in records(batch, header.base_offset):
                if record.offset >= offset and len(self.offsets) < self.limit:
                    self.offsets.append(record.offset)
                    offset = record.offset + 1
        return offset


class Sized:
    """A partition with one record, whose size is unknown before the read."""

    log_end = 1

    def visible_end(self, isolation: Isolation) -> int:
        return self.log_end

    def __init__(self, size: int) -> None:
        self.batch = bytes(build([(None, b"x" * size, 1, ())]))

    def check_readable(self, offset: int) -> None:
        pass

    def cached(self, offset: int) -> bool:
        return False

    async def read_stored(
        self, offset: int, limit: int, *, first: int, isolation: Isolation
    ) -> tuple[list[Buffer], int]:
        if len(self.batch) > first:
            raise NeedsRoom(len(self.batch))
        return [self.batch], len(self.batch)


async def test_a_record_larger_than_usual_is_counted_while_it_is_read() -> None:
    large_reads, partition, sink = ReadBudget(3 << 20), Sized(2 << 20), Sink(room=100)
    large_reads.take(2 << 20)
    reading = asyncio.ensure_future(read(cast("Source", partition), 0, sink, large_reads=large_reads))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (reading.done(), sink.offsets) == (False, [])
    large_reads.release(2 << 20)
    assert await reading == 1
    assert (sink.offsets, large_reads.used) == ([0], 0)


def fill(partition: LeaderPartition, storage: MemoryStorage, *counts: int) -> None:
    for count in counts:
        batch = build([(None, b"x" * 100, 1, ()) for _ in range(count)])
        partition.append(Append(batch, count, 1), lambda _: None)
    storage.logs.answer()


@pytest.fixture(params=["cached", "stored"])
def log(
    request: pytest.FixtureRequest, partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> LeaderPartition:
    """Batches of 3, 1 and 4 records."""
    fill(partition, storage, 3, 1, 4)
    if request.param == "stored":
        drop_cached()
    return partition


async def test_everything_up_to_the_log_end(log: LeaderPartition) -> None:
    sink = Sink()
    assert await read(log, 0, sink) == 8
    assert sink.offsets == list(range(8))


async def test_from_within_a_batch(log: LeaderPartition) -> None:
    sink = Sink()
    assert await read(log, 5, sink) == 8
    assert sink.offsets == [5, 6, 7]


async def test_in_small_pieces(log: LeaderPartition) -> None:
    """A batch larger than what is wanted comes all the same: there is at least one record when there is one."""
    sink = Sink(room=1)
    assert await read(log, 0, sink) == 8
    assert sink.offsets == list(range(8))
    assert sink.calls == 3


async def test_thousands_of_small_batches_come_some_hundred_at_a_time(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    """Hundreds of clients may ask for them in one turn of the loop: none lists all of its own before one reads."""
    fill(partition, storage, *[1] * 2_000)
    sink = Sink()
    assert await read(partition, 0, sink) == 2_000
    assert sink.offsets == list(range(2_000))
    assert sink.widest < 250


async def test_no_further_than_the_sink_wants(log: LeaderPartition) -> None:
    sink = Sink(limit=2)
    assert await read(log, 1, sink) == 3
    assert sink.offsets == [1, 2]
    assert await read(log, 3, sink) == 3


async def test_nothing_at_the_log_end(log: LeaderPartition) -> None:
    sink = Sink()
    assert await read(log, 8, sink) == 8
    assert sink.calls == 0


async def test_the_time_is_passed_on(log: LeaderPartition) -> None:
    sink = Sink()
    await read(log, 0, sink, 5)
    assert sink.not_before_ms == 5


@pytest.mark.parametrize("offset", [-1, 9])
async def test_an_offset_that_is_not_there(log: LeaderPartition, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange):
        await read(log, offset, Sink())


async def test_behind_the_log_start(log: LeaderPartition) -> None:
    log.local_start = 4
    with pytest.raises(OffsetOutOfRange):
        await read(log, 3, Sink())
    assert await read(log, 4, Sink()) == 8


async def test_a_deleted_topic(log: LeaderPartition) -> None:
    log.close()
    with pytest.raises(UnknownTopic):
        await read(log, 0, Sink())


async def test_storage_that_does_not_answer(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    fill(partition, storage, 1)
    drop_cached()
    storage.unavailable = True
    with pytest.raises(StorageUnavailable):
        await read(partition, 0, Sink())


async def test_records_that_expire_during_a_read(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    fill(partition, storage, 3)
    drop_cached()
    storage.logs.logs[partition.stream].batches.clear()
    assert await read(partition, 1, Sink()) == 1
    partition.local_start = 3
    with pytest.raises(OffsetOutOfRange):
        await read(partition, 1, Sink())
