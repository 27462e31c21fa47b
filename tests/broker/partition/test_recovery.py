"""What is known of the high watermark once a log is opened again, after doubts and losses."""

import asyncio

import pytest
from tests.broker.batches import batch
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.testing.clock import ManualClock
from headrace.topics.errors import NotLeader


async def test_a_leader_after_a_doubt_knows_what_readers_were_shown(
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


async def lose_log(partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock) -> None:
    """Redis comes back with nothing of the log, and another broker appends to what is left."""
    storage.logs.logs[partition.stream].batches.clear()
    other = LeaderPartition("t", 0, partition.stream, storage.logs, CacheBudget(0), clock, SnapshotSchedule())
    await other.open()
    other.append(batch(5), lambda _: None)
    storage.logs.answer()
    assert other.leader_epoch > partition.leader_epoch


async def test_replacements_of_lost_records_were_not_readable(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    partition.want_copies(2)
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    partition.release(7)
    assert (await RemotePartitionReader.look_at(partition, storage.logs, 3)).log_end == 3
    await lose_log(partition, storage, clock)

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
