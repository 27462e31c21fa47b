"""`min.insync.replicas` above 1 in one partition: the order of responses, and the readable records until then."""

import asyncio

import pytest
from tests.broker.batches import batch, sent
from tests.harness.memory import MemoryCopies, MemoryStorage

from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.in_sync_replicas import done_with_copies
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.timestamps import NOT_FOUND, FoundOffset, Searcher, Special
from headrace.broker.runtime.decompression import Decompression
from headrace.testing.clock import ManualClock
from headrace.topics.errors import (
    BehindRefused,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetOutOfRange,
    StorageUnavailable,
)
from headrace.topics.model import Appended

TOO_FEW = NotEnoughReplicasAfterAppend("1 has it")


async def test_a_batch_is_acknowledged_and_readable_when_the_replicas_have_it(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (3, [Appended(0)])


async def test_acks_1_does_not_wait_and_readers_do(partition: LeaderPartition, storage: MemoryStorage) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 0)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [Appended(0)])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (3, [Appended(0)])


async def test_without_replicas_the_producer_gets_an_error_and_readers_wait(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    assert (partition.log_end, results) == (0, [TOO_FEW])

    storage.logs.copies.why = "1 has it"
    with pytest.raises(NotEnoughReplicas, match="1 has it"):
        partition.append(batch(3), results.append, 2, 1_000)
    partition.append(batch(2), results.append, 2, 0)
    partition.append(batch(2), results.append)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    assert (partition.log_end, results) == (0, [TOO_FEW, Appended(3), Appended(5)])

    # Copies that were asked for before the last two batches were there say nothing of those.
    storage.logs.copies.come()
    assert partition.log_end == 3
    storage.logs.copies.come()
    assert partition.log_end == 7


@pytest.mark.parametrize("failed", [False, True])
async def test_a_failing_callback_does_not_affect_the_others(
    partition: LeaderPartition, storage: MemoryStorage, failed: bool
) -> None:
    def fail(_: Appended | Exception) -> None:
        raise RuntimeError("its connection is gone")

    results: list[Appended | Exception] = []
    partition.append(batch(3), fail, 2, 1_000)
    partition.append(batch(2), results.append, 2, 1_000)
    storage.logs.answer()
    gone = StorageUnavailable("the primary is gone")
    if failed:
        partition.on_lost(gone)
    else:
        storage.logs.copies.asked[1](None)
    assert (partition.log_end, results) == ((0, [gone]) if failed else (5, [Appended(3)]))


async def test_a_repeated_batch_is_acknowledged_only_with_its_copies(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0, 2), results.append, 2, 1_000)
    partition.append(sent(0, 2), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    assert results == [TOO_FEW]
    storage.logs.copies.answer(TOO_FEW)
    assert results == [TOO_FEW, TOO_FEW]

    partition.append(sent(0, 2), results.append, 2, 1_000)
    storage.logs.copies.answer()

    assert results == [TOO_FEW, TOO_FEW, Appended(0, duplicate=True)]
    storage.logs.copies.come()
    assert partition.log_end == 2


async def test_appends_without_waiters_complete_in_order_when_the_setting_is_lowered(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    partition.append(batch(2), results.append)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [Appended(3)])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (5, [Appended(3), Appended(0)])


async def test_waiting_batches_are_readable_once_no_replicas_are_required(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget
) -> None:
    results: list[Appended | Exception] = []
    partition.want_copies(2)
    for _ in range(2):
        partition.append(batch(3), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    assert (partition.log_end, results) == (0, [TOO_FEW])

    partition.want_copies(1)

    assert (partition.log_end, results, budget.held) == (6, [TOO_FEW, Appended(3)], 0)
    storage.logs.copies.answer(TOO_FEW)
    storage.logs.copies.come()
    assert (partition.log_end, len(results)) == (6, 2)


async def test_a_recovered_log_is_proved_where_replication_is_no_longer_required(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    partition.want_copies(2)
    await partition.open()
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.unavailable = True
    storage.logs.answer()
    partition.want_copies(1)
    storage.unavailable = False
    with pytest.raises(StorageUnavailable, match="t-0: the connection was lost"):
        await partition.settle()  # a conversion would miss what recovery will report

    before = partition.leader_epoch
    while partition.leader_epoch == before:
        await asyncio.sleep(0)

    partition.check_end()
    await partition.settle()


async def test_copies_that_were_enough_before_are_not_when_more_are_wanted(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    partition.want_copies(2)
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    (two_have_it,) = storage.logs.copies.patient
    partition.want_copies(3)
    two_have_it(None)
    assert partition.log_end == 0
    storage.logs.copies.patient.remove(two_have_it)
    storage.logs.copies.come()
    assert partition.log_end == 3


async def test_an_opened_log_is_shown_as_far_as_it_has_its_copies(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    """Readers of records that replicas may lack wait; their offset is not reported as out of range."""
    told: list[int] = []
    partition.want_copies(2)
    for time_ms in (1_000, 3_000):
        partition.append(batch(3, timestamp=time_ms), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    assert partition.log_end == 3

    await partition.open()
    partition.append(batch(2), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()  # of a batch that was placed before the opening
    partition.watch(told.append)

    assert partition.log_end == 3
    for offset in (3, 4, 6, 8, 100):
        partition.check_readable(offset)
        assert partition.at_end(offset)
    assert [each.base_offset for each in await partition.read_range(0, 1 << 20)] == [0]
    assert await partition.find_offset(Special.EARLIEST, Searcher(Decompression())) == FoundOffset(0)
    assert await partition.find_offset(0, Searcher(Decompression())) == FoundOffset(0, 1_000)
    for timestamp in (Special.LATEST, Special.MAX_TIMESTAMP, 2_000):
        with pytest.raises(NotLeader, match="t-0: how far it can be read is known when its replicas have"):
            await partition.find_offset(timestamp, Searcher(Decompression()))
    with pytest.raises(NotLeader):
        partition.end_of_epoch(2)

    storage.logs.copies.come()
    assert (partition.log_end, told) == (6, [0])
    partition.check_readable(8)
    storage.logs.copies.answer()

    assert partition.log_end == 8
    assert [(await partition.read_range(offset, 1))[0].base_offset for offset in (0, 3, 6)] == [0, 3, 6]
    assert await partition.find_offset(Special.LATEST, Searcher(Decompression())) == FoundOffset(8)
    assert partition.end_of_epoch(1) == (1, 6)
    with pytest.raises(OffsetOutOfRange):
        partition.check_readable(9)


async def test_a_new_leader_knows_its_observed_high_watermark(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    partition.want_copies(2)
    partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    partition.release(7)
    storage.logs.copies.asked.clear()
    followed = asyncio.create_task(RemotePartitionReader.look_at(partition, storage.logs, 0))
    await waits(storage)
    storage.logs.copies.answer(TOO_FEW)
    assert (await followed).log_end == 0
    followed = asyncio.create_task(RemotePartitionReader.look_at(partition, storage.logs, 0))
    await waits(storage)
    storage.logs.copies.answer()
    assert (await followed).log_end == 3
    # It is known now, and need not be asked for again.
    assert (await RemotePartitionReader.look_at(partition, storage.logs, 3)).log_end == 3

    partition.lead(8)
    await partition.open()

    assert (partition.log_end, partition.replication.high_watermark_known) == (3, False)


async def test_a_restarted_leader_knows_what_readers_were_shown(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Written down within a second, not with each batch: without replicas it is read that far."""
    partition.want_copies(2)
    for _ in range(2):
        partition.append(batch(3), lambda _: None, 2, 0)
    storage.logs.answer()
    storage.logs.copies.answer()
    await partition.save_producers()
    storage.logs.copies.asked.clear()
    storage.logs.copies.why = "1 has it"
    other = LeaderPartition("t", 0, partition.stream, storage.logs, CacheBudget(0), clock, SnapshotSchedule())
    other.want_copies(2)
    assert (await RemotePartitionReader.look_at(other, storage.logs, 0)).log_end == 3

    await other.open()

    assert (other.log_end, other.replication.high_watermark_known) == (3, False)
    storage.logs.copies.come()
    assert other.log_end == 6


async def test_a_primary_that_was_replaced_does_not_say_what_is_not_there(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    """A reader that asks one broker after the other may have been shown more at the one that is the primary now."""
    partition.want_copies(2)
    partition.release(7)
    storage.logs.copies.why = "1 has it"
    followed = await RemotePartitionReader.look_at(partition, storage.logs, 5)
    followed.check_readable(5)
    assert followed.at_end(5)

    storage.logs.copies.why = ""
    looking = asyncio.create_task(RemotePartitionReader.look_at(partition, storage.logs, 5))
    await waits(storage)
    storage.logs.copies.promoted += 1
    storage.logs.copies.answer()
    with pytest.raises(StorageUnavailable, match="another primary may have taken over"):
        await looking


async def waits(storage: MemoryStorage) -> None:
    """Return when an append waits for replication."""
    while not storage.logs.copies.asked:
        await asyncio.sleep(0)


async def test_waiters_are_notified_when_another_broker_takes_over(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append, 2, 1_000)
    storage.logs.answer()
    partition.release(7)
    assert [type(result) for result in results] == [NotLeader]

    storage.logs.copies.answer()

    assert len(results) == 1
    partition.lead(8)
    await partition.open()
    partition.append(sent(0), results.append, 2, 1_000)
    storage.logs.copies.answer()
    assert results[1:] == [Appended(0, duplicate=True)]
    assert partition.log_end == 1


async def test_pending_bytes_for_slow_replicas_are_bounded(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget
) -> None:
    """It is held even if its sender has its response or has disconnected."""
    budget.most_held = 1
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 0)
    storage.logs.answer()
    for copies, wait_ms in ((2, 0), (2, 1_000), (1, 0)):
        with pytest.raises(NotEnoughReplicas, match="wait for the replicas of Redis, which lag"):
            partition.append(batch(3), results.append, copies, wait_ms)
    assert results == [Appended(0)]

    storage.logs.copies.answer()
    partition.append(batch(2), results.append, 2, 0)
    storage.logs.answer()
    assert results[1:] == [Appended(3)]

    # What another broker has now is not held here.
    partition.release(7)
    partition.lead(8)
    await partition.open()
    partition.append(batch(2), results.append, 2, 0)


@pytest.mark.parametrize("wait_ms", [0, 1_000])
async def test_records_that_the_next_primary_may_lack_are_not_readable(
    partition: LeaderPartition, storage: MemoryStorage, wait_ms: int
) -> None:
    results: list[Appended | Exception] = []
    told: list[int] = []
    partition.append(sent(0, 3), results.append, 2, wait_ms)
    storage.logs.answer()
    partition.watch(told.append)
    # What a replica that takes over has.
    log = storage.logs.logs[partition.stream]
    log.batches.clear()
    log.producers.clear()

    storage.logs.copies.answer(StorageUnavailable("it is not the primary that it was"))

    assert (partition.log_end, told) == (0, [])
    assert [type(result) for result in results] == [StorageUnavailable if wait_ms else Appended]
    with pytest.raises(StorageUnavailable):
        partition.append(sent(0, 3), results.append, 2, 1_000)
    async with asyncio.timeout(60):
        while partition.leader_epoch == 1:
            await asyncio.sleep(0)
    partition.append(sent(0, 3), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer()
    assert results[1:] == [Appended(0)]
    assert (partition.log_end, told) == (3, [len(log.batches[0].batch)])


async def test_batches_that_waited_for_replicas_are_retried_before_later_ones(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append, 2, 1_000)
    storage.logs.answer()
    log = storage.logs.logs[partition.stream]
    log.batches.clear()
    log.producers.clear()
    storage.logs.copies.answer(StorageUnavailable("it is not the primary that it was"))
    async with asyncio.timeout(60):
        while partition.leader_epoch == 1:
            await asyncio.sleep(0)

    with pytest.raises(BehindRefused):
        partition.append(sent(1), results.append, 2, 1_000)
    for sequence in (0, 1):
        partition.append(sent(sequence), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer()
    storage.logs.copies.answer()
    assert results[1:] == [Appended(0), Appended(1)]


async def test_a_reader_of_the_storage_sees_no_more_than_one_of_the_memory(
    storage: MemoryStorage, clock: ManualClock
) -> None:
    partition = LeaderPartition("t", 0, "headrace:t:0", storage.logs, CacheBudget(0), clock, SnapshotSchedule())
    await partition.open(create=True)
    partition.append(batch(3, timestamp=1_000), lambda _: None)
    storage.logs.answer()
    # A new leader does not know the log's replication state.
    await partition.open()
    partition.append(batch(2, timestamp=2_000), lambda _: None, 2, 1_000)
    storage.logs.answer()

    stored = await partition.read_range(0, 1 << 20)
    assert [each.base_offset for each in stored] == [0]
    assert await partition.find_offset(2_000, Searcher(Decompression())) == NOT_FOUND

    storage.logs.copies.answer()

    stored = await partition.read_range(0, 1 << 20)
    assert [each.base_offset for each in stored] == [0, 3]
    assert await partition.find_offset(2_000, Searcher(Decompression())) == FoundOffset(3, 2_000)


async def test_batches_that_wait_for_replicas_are_not_trimmed(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    for _ in range(3):
        partition.append(batch(3), lambda _: None, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer()

    await partition.trim(before_ms=5_000, max_bytes=0)
    assert (partition.log_start, partition.log_end) == (3, 3)

    storage.logs.copies.answer()
    await partition.trim(before_ms=5_000, max_bytes=0)
    assert (partition.log_start, partition.log_end) == (6, 6)


async def test_waiters_are_notified_when_the_topic_and_the_primary_are_gone(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    partition.close()
    storage.logs.answer()

    storage.logs.copies.answer(StorageUnavailable("it is not the primary that it was"))

    assert [type(result) for result in results] == [StorageUnavailable]
    assert budget.held == 0


async def test_a_primary_that_took_over_does_not_confirm_what_another_has_acknowledged() -> None:
    """A native topic has no recovery, so nothing else would reveal that its entries may be gone."""
    copies = MemoryCopies()
    results: list[Appended | Exception] = []
    done, other = (done_with_copies(copies, "headrace:t:0", 2, 1_000, results.append) for _ in range(2))
    done(Appended(0))
    copies.answer()
    assert results == [Appended(0)]

    copies.promoted += 1
    other(Appended(1))

    assert copies.asked == []
    assert str(results[1]) == "another primary may have taken over since the records were acknowledged"
    assert isinstance(results[1], StorageUnavailable)
