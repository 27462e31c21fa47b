"""The high watermark of a log whose copies are waited for: after doubts, losses, and wherever it is led."""

import asyncio

import pytest
from tests.broker.batches import batch
from tests.broker.partition.test_high_watermark import waits
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers import remote_reader
from headrace.broker.brokers.remote_reader import RemotePartitionReader
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.timestamps import FoundOffset, Searcher, Special
from headrace.broker.ports import LogLook
from headrace.broker.runtime.decompression import Decompression
from headrace.testing.clock import ManualClock
from headrace.topics.errors import NotLeader, OffsetOutOfRange


async def test_whoever_opens_a_log_after_a_doubt_knows_what_readers_were_shown(
    storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    """What was not written down before the doubt cannot be during it: it is after the opening."""
    snapshots = SnapshotSchedule()
    partition = LeaderPartition("t", 0, "headrace:t:0", storage.logs, budget, clock, snapshots)
    partition.want_copies(2)
    await partition.open(create=True)
    storage.logs.copies.come()
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.unavailable = True
    storage.logs.answer()
    await snapshots.save()
    assert storage.logs.logs[partition.stream].high_watermark == 0
    storage.unavailable = False
    for _ in range(1_000):
        if partition.leader_epoch > 1:
            break
        clock.advance(100)
        await asyncio.sleep(0)
    await snapshots.save()
    assert (partition.log_end, partition.replication.high_watermark_known) == (3, False)
    assert storage.logs.logs[partition.stream].high_watermark == 3


async def test_what_was_shown_is_written_down_when_copies_are_wanted_from_now_on(
    storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    snapshots = SnapshotSchedule()
    partition = LeaderPartition("t", 0, "headrace:t:0", storage.logs, budget, clock, snapshots)
    await partition.open(create=True)
    partition.append(batch(3), lambda _: None)
    storage.logs.answer()
    await snapshots.save()
    partition.want_copies(2)
    await snapshots.save()
    assert storage.logs.logs[partition.stream].high_watermark == 3


async def _lose_it(partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock) -> None:
    """Redis comes back with nothing of the log, and another broker appends to what is left."""
    storage.logs.logs[partition.stream].batches.clear()
    other = LeaderPartition("t", 0, partition.stream, storage.logs, CacheBudget(0), clock, SnapshotSchedule())
    await other.open()
    other.append(batch(5), lambda _: None)
    storage.logs.answer()
    assert other.leader_epoch > partition.leader_epoch


async def test_what_came_in_place_of_what_redis_has_lost_was_shown_to_nobody(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    partition.want_copies(2)
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    partition.release(7)
    assert (await RemotePartitionReader.look_at(partition, storage.logs, 3)).log_end == 3
    await _lose_it(partition, storage, clock)

    storage.logs.copies.why = "1 has it"
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 3)
    assert followed.log_end == 0
    followed.check_readable(3)
    with pytest.raises(NotLeader):
        await followed.ask_end()

    partition.lead(8)
    await partition.open()
    assert (partition.log_end, partition.replication.high_watermark_known) == (0, False)
    storage.logs.copies.come()
    assert partition.log_end == 5


async def test_a_primary_that_was_just_woken_is_asked_again_where_a_reader_has_come_further(
    partition: LeaderPartition, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_reader, "_WOKEN_S", 0)
    partition.append(batch(3), lambda _: None)
    storage.logs.answer()
    woken = await storage.logs.look(partition.stream)
    partition.append(batch(4), lambda _: None)
    storage.logs.answer()
    partition.release(7)
    looks, look = [woken], storage.logs.look

    async def told(stream: str) -> LogLook:
        return looks.pop() if looks else await look(stream)

    monkeypatch.setattr(storage.logs, "look", told)
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 7)
    followed.check_readable(7)
    assert followed.log_end == 7


async def test_where_redis_has_lost_records_readers_elsewhere_are_told(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the copies, or where none are wanted, the end that Redis has is the end."""
    monkeypatch.setattr(remote_reader, "_WOKEN_S", 0)
    partition.append(batch(7), lambda _: None)
    storage.logs.answer()
    partition.release(7)
    await _lose_it(partition, storage, clock)
    for copies in (1, 2):
        partition.want_copies(copies)
        looking = asyncio.create_task(RemotePartitionReader.look_at(partition, storage.logs, 7))
        if copies > 1:
            await waits(storage)
            storage.logs.copies.answer()
        followed = await looking
        assert followed.log_end == 5
        with pytest.raises(OffsetOutOfRange):
            followed.check_readable(7)


async def test_by_time_a_log_is_the_same_wherever_it_is_led(partition: LeaderPartition, storage: MemoryStorage) -> None:
    partition.want_copies(2)
    for time_ms in (1_000, 3_000):
        partition.append(batch(3, timestamp=time_ms), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    partition.release(7)
    storage.logs.copies.why = "1 has it"
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 0)
    partition.lead(8)
    await partition.open()
    for each in (partition, followed):
        assert each.log_end == 3
        assert await each.find_offset(500, Searcher(Decompression())) == FoundOffset(0, 1_000)
        for timestamp in (Special.LATEST, Special.MAX_TIMESTAMP, 2_000, 9_000):
            with pytest.raises(NotLeader, match="t-0: how far it can be read is known when its replicas have"):
                await each.find_offset(timestamp, Searcher(Decompression()))
