"""What lagging readers of one log get: what was read ahead for them, and what stays correct around it."""

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.batches import batch
from tests.harness.memory import MemoryStorage

from headrace.broker.partition import reader
from headrace.broker.partition.cache import CacheBudget, count_records
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.reader import GRAIN, ColdReads, LogIndex
from headrace.broker.runtime.budget import ReadBudget
from headrace.records.batch import peek
from headrace.testing.clock import ManualClock
from headrace.topics.model import StoredBatch


async def filled(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None], count: int
) -> int:
    """Batches of ten records that memory has not; the size of each."""
    for _ in range(count):
        partition.append(batch(10), lambda _: None)
    storage.logs.answer()
    drop_cached()
    return len(storage.logs.logs[partition.stream].batches[0].batch)


async def read_on(partition: LeaderPartition, offset: int) -> None:
    """Let it come that is read ahead."""
    while not partition.cached(offset):
        await asyncio.sleep(0)


async def test_who_takes_less_than_was_read_ahead_ends_with_a_batch_by_itself(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    """The first and the last header give the number of records."""
    size = await filled(partition, storage, drop_cached, 12)
    await partition.read_stored(0, 5 * size, join=True)
    await read_on(partition, 50)
    chunks, total = partition.read_cached(50, 4 * size, whole_first=True, join=True)
    assert (total, count_records(chunks, has_gaps=False)) == (4 * size, 40)
    # A reader that starts in the middle of the last batch does not get batches that were read together, either.
    await read_on(partition, 90)
    chunks, total = await partition.read_stored(85, size)
    assert [peek(chunk).base_offset for chunk in chunks] == [80]
    assert total == size


async def test_what_was_read_ahead_as_one_is_taken_apart_where_only_a_part_of_it_fits(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    size = await filled(partition, storage, drop_cached, 12)
    await partition.read_stored(0, 5 * size, join=True)
    await read_on(partition, 50)
    chunks, total = partition.read_cached(50, 2 * size, whole_first=False, join=True)
    assert total == 2 * size
    assert [peek(chunk).base_offset for chunk in chunks] == [50, 60]


class Cold:
    """An archive that has all up to offset 20."""

    start = 0

    def __init__(self, batches: list[StoredBatch]) -> None:
        self.batches = batches

    def has(self, offset: int, before: int) -> bool:
        return offset < max(before, 20)

    async def read(self, offset: int, end: int, limit: int) -> list[StoredBatch]:
        return [each for each in self.batches if each.base_offset <= offset < each.next_offset]


async def test_records_that_expired_before_the_read_ahead_come_from_the_archive(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    size = await filled(partition, storage, drop_cached, 6)
    cold: Any = Cold([*storage.logs.logs[partition.stream].batches])
    partition.cold = cold
    await partition.read_stored(0, size, join=True)
    # This broker does not know of the trim when it reads on.
    await storage.logs.trim(partition.stream, before_offset=20)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not partition.cached(10)
    chunks, _ = await partition.read_stored(10, size, join=True)
    assert peek(chunks[0]).base_offset == 10


async def test_a_read_in_flight_during_the_recovery_leaves_nothing(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = await filled(partition, storage, drop_cached, 6)
    read, answered = storage.logs.read, asyncio.Event()

    async def slow(*asked: Any) -> list[StoredBatch]:
        found = await read(*asked)
        await answered.wait()
        return found

    monkeypatch.setattr(storage.logs, "read", slow)
    reading = asyncio.ensure_future(partition.read_stored(0, size))
    await asyncio.sleep(0)
    partition.close()
    answered.set()
    await reading
    for _ in range(20):
        await asyncio.sleep(0)
    assert not partition.cached(10)


async def test_what_was_answered_is_not_held_while_more_is_read_ahead(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    """It would not be counted."""
    size = await filled(partition, storage, drop_cached, 6)
    log = storage.logs.logs[partition.stream].batches
    log[:] = [StoredBatch(b.base_offset, b.next_offset, memoryview(bytearray(b.batch))) for b in log]
    chunks, _ = await partition.read_stored(0, size, join=True)
    held = weakref.ref(chunks.pop())
    log.clear()
    assert held() is None


async def test_large_batches_behind_small_ones_are_few_where_they_came_as_one(
    partition: LeaderPartition,
    storage: MemoryStorage,
    budget: CacheBudget,
    clock: ManualClock,
    drop_cached: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next ones may have left the page cache: then so many come as were asked for."""
    small = await filled(partition, storage, drop_cached, 100)
    for _ in range(100):
        partition.append(batch(1_000), lambda _: None)
    storage.logs.answer()
    large = len(storage.logs.logs[partition.stream].batches[-1].batch)
    later = LeaderPartition("t", 0, partition.stream, storage.logs, budget, clock, SnapshotSchedule(), ReadBudget(0))
    await later.open()
    read, counts = storage.logs.read, list[int]()

    async def counted(stream: str, offset: int, count: int, *bounds: Any) -> list[StoredBatch]:
        counts.append(count)
        return await read(stream, offset, count, *bounds)

    monkeypatch.setattr(storage.logs, "read", counted)
    offset = 0
    while offset < 20_000:
        chunks, _ = await later.read_stored(offset, 2 * large, join=True)
        offset = peek(chunks[-1]).base_offset + peek(chunks[-1]).count
    assert max(counts) * small < 2 * large
    assert max(counts) > 16
    assert counts[-1] <= 4


async def test_batches_that_were_read_ahead_are_in_memory(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    size = await filled(partition, storage, drop_cached, 9)
    assert not partition.cached(0)

    first, _ = await partition.read_stored(0, 3 * size, join=True)
    while not partition.cached(30):
        await asyncio.sleep(0)
    reads = storage.logs.reads

    assert [len(chunk) for chunk in first] == [2 * size, size]
    assert not partition.cached(29)
    assert partition.read_cached(30, size - 1, whole_first=False) == ([], 0)
    second, total = partition.read_cached(30, 3 * size, whole_first=True, join=True)
    assert [peek(chunk[:size]).base_offset for chunk in second] == [30, 50]
    assert total == 3 * size
    assert storage.logs.reads == reads
    while not partition.cached(60):
        await asyncio.sleep(0)
    third, total = partition.read_cached(60, 2 * size, whole_first=True)
    assert [peek(chunk).base_offset for chunk in third] == [60, 70]
    assert total == 2 * size


async def test_trimmed_records_that_were_read_ahead_are_not_returned(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    for _ in range(3):
        partition.append(batch(10), lambda _: None)
    storage.logs.answer()
    drop_cached()
    await partition.read_stored(0, 1)
    while not partition.cached(10):
        await asyncio.sleep(0)
    await partition.save_producers()
    await partition.delete_before(20)
    assert not partition.cached(10)


# The sparse index against a plain list of batches.
sizes = st.lists(st.one_of(st.integers(61, 2_000), st.integers(GRAIN // 2, 4 * GRAIN)), max_size=200)


@given(sizes, st.integers(0, 1000), st.integers(1, 1 << 20), st.data())
def test_a_read_up_to_the_end_found_brings_about_the_bytes_asked_for(
    batches: list[int], start: int, limit: int, data: st.DataObject
) -> None:
    made = LogIndex(start)
    for number, size in enumerate(batches):
        made.append(start + number, size)
    offset = data.draw(st.integers(start, start + len(batches)))
    assert made.covers(offset)

    end = made.end_of(offset, limit)
    read = batches[offset - start : None if end is None else end - start]

    # Never nothing when there is something; never more than a place or a batch over the limit.
    assert bool(read) == (offset < start + len(batches))
    assert sum(read) <= limit + 2 * GRAIN + max(batches, default=0)
    if end is not None:
        assert sum(read) + 2 * GRAIN + max(batches) >= min(limit, sum(batches[offset - start :]))


def test_offsets_before_the_server_started_are_not_covered() -> None:
    made = LogIndex(500)

    assert not made.covers(499)
    assert made.covers(500)


def test_a_long_log_has_a_coarser_index_not_a_larger_one(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(reader, "_MOST_PLACES", 8)
    made = LogIndex(0)
    for number in range(1000):
        made.append(number, GRAIN)

    end = made.end_of(0, GRAIN)
    assert end is not None
    assert 0 < end <= 300


def test_cold_reads_begin_small_and_grow_while_batches_prove_small() -> None:
    cold = ColdReads()
    asked = []
    for _ in range(8):
        asked.append(cold.count)
        cold.learn(cold.count, cold.count, 100 * cold.count, 1 << 20)

    assert asked == [1, 2, 4, 8, 16, 32, 64, 64]

    cold.learn(64, 64, 64 << 20, 1 << 20)
    assert cold.count == 1


def test_cold_reads_that_end_where_no_more_fits_ask_for_no_more() -> None:
    cold = ColdReads()
    cold.learn(64, 10, 1 << 20, 1 << 20, full=True)
    assert cold.count == 10
    cold.learn(10, 3, 1 << 10, 1 << 20)
    assert cold.count == 10
