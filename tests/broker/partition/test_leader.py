"""One partition: what is readable, what happens when Redis is lost in the middle of an append."""

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import structlog
from tests.broker.batches import batch, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.membership.view import Leader
from headrace.records.batch import peek
from headrace.testing.clock import ManualClock
from headrace.topics.errors import (
    BehindRefused,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    StorageMoving,
    StorageUnavailable,
    TopicError,
    UnknownTopic,
)
from headrace.topics.model import Appended, Lost, OpenedLog, StoredBatch
from headrace.topics.rejected_batches import WAIT_MS


async def test_a_record_is_readable_only_once_redis_has_answered(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append)
    assert (partition.log_end, results) == (0, [])

    storage.logs.answer()

    assert partition.log_end == 3
    assert results == [Appended(0)]


async def test_batches_in_memory_are_stamped_with_their_offsets(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    partition.append(batch(3), lambda _: None)
    partition.append(batch(2), lambda _: None)
    storage.logs.answer()

    chunks, _ = partition.read_cached(0, 1 << 20, whole_first=True)

    assert [peek(chunk).base_offset for chunk in chunks] == [0, 3]
    assert [peek(chunk).leader_epoch for chunk in chunks] == [1, 1]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("copies", [1, 2])
def test_no_part_of_a_partition_holds_it(
    storage: MemoryStorage, budget: CacheBudget, clock: ManualClock, copies: int
) -> None:
    snapshots = SnapshotSchedule()
    made = LeaderPartition("t", 0, "headrace:t:0", storage.logs, budget, clock, snapshots)
    made.want_copies(copies)
    snapshots.discard(made)
    gone = weakref.ref(made)
    del made
    assert gone() is None


async def test_a_batch_that_is_stored_when_its_topic_is_gone_takes_no_memory_of_others(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append)
    partition.close()
    storage.logs.answer()
    assert results == [Appended(0)]
    assert (budget.used, partition.log_end) == (0, 0)


async def test_batches_from_redis_are_stamped_too(partition: LeaderPartition, storage: MemoryStorage) -> None:
    partition.append(batch(3), lambda _: None)
    partition.append(batch(2), lambda _: None)
    storage.logs.answer()

    chunks, size = await partition.read_stored(4, 1 << 20)
    answer = b"".join(chunks)

    assert len(answer) == size
    assert peek(answer).base_offset == 3


async def test_batches_that_came_in_memory_of_their_own_are_stamped_in_place(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    partition.append(batch(3), lambda _: None)
    partition.append(batch(2), lambda _: None)
    storage.logs.answer()
    log = storage.logs.logs[partition.stream].batches
    log[:] = [StoredBatch(b.base_offset, b.next_offset, memoryview(bytearray(b.batch))) for b in log]

    chunks, size = await partition.read_stored(0, 1 << 20)

    assert [id(chunk) for chunk in chunks] == [id(stored.batch) for stored in log]
    assert size == sum(map(len, chunks))
    assert [peek(chunk).base_offset for chunk in chunks] == [0, 3]


async def test_a_reader_that_stops_in_the_middle_of_a_batch_goes_on_without_redis(
    partition: LeaderPartition, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    for _ in range(3):
        partition.append(batch(10), lambda _: None)
    storage.logs.answer()
    drop_cached()

    bases = []
    for offset in (0, 3, 9, 10, 14, 20, 25):
        chunks, _ = await partition.read_stored(offset, 1)
        bases.append(peek(b"".join(chunks)).base_offset)

    assert bases == [0, 0, 0, 10, 10, 20, 20]
    assert storage.logs.reads <= 2


async def test_an_offset_outside_the_log_is_refused(partition: LeaderPartition, storage: MemoryStorage) -> None:
    partition.append(batch(5), lambda _: None)
    storage.logs.answer()
    await partition.delete_before(2)

    partition.check_readable(2)
    partition.check_readable(5)
    for offset in (1, 6, -1):
        with pytest.raises(OffsetOutOfRange):
            partition.check_readable(offset)


async def test_after_a_lost_answer_the_log_end_is_read_again(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    grown: list[int] = []
    partition.append(batch(2), results.append)
    storage.logs.answer()
    partition.watch(grown.append)
    # Redis took this batch, and the connection broke before the answer.
    lost = batch(4)
    partition.append(lost, results.append)
    storage.unavailable = True
    storage.logs.answer()
    assert [type(result) for result in results] == [Appended, StorageUnavailable]

    with pytest.raises(StorageUnavailable):
        partition.append(batch(), results.append)
    storage.logs.logs[partition.stream].batches.append(StoredBatch(2, 6, bytes(lost.batch)))
    storage.unavailable = False
    while partition.log_end == 2:
        await asyncio.sleep(0)

    assert partition.log_end == 6
    assert grown == [1]
    assert not partition.cached(5)
    partition.append(batch(), results.append)
    storage.logs.answer()
    assert results[-1] == Appended(6)
    assert partition.cached(6)


async def test_a_deleted_partition_takes_and_gives_nothing(partition: LeaderPartition) -> None:
    grown: list[int] = []
    partition.watch(grown.append)
    partition.close()

    assert grown == [0]
    with pytest.raises(UnknownTopic):
        partition.append(batch(), lambda _: None)
    with pytest.raises(UnknownTopic):
        partition.check_readable(0)


async def test_appends_with_a_lost_response_are_refused_and_may_be_retried(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(2), results.append)
    partition.append(batch(3), results.append)  # on its way when the first one's fate becomes unknown
    storage.unavailable = True
    storage.logs.answer(1)
    storage.unavailable = False
    for _ in range(5):
        await asyncio.sleep(0)
    storage.logs.answer()

    assert [type(result) for result in results] == [StorageUnavailable, StorageUnavailable]
    assert (partition.log_end, partition.leader_epoch) == (0, 2)
    partition.append(batch(), results.append)
    storage.logs.answer()
    assert results[-1] == Appended(0)


async def test_a_repeated_batch_is_answered_when_its_first_copy_is_stored(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0, 2), results.append)
    partition.append(sent(0, 2), results.append)
    assert results == []
    storage.logs.answer()
    partition.append(sent(0, 2), results.append)

    assert results == [Appended(0), Appended(0, duplicate=True), Appended(0, duplicate=True)]
    assert partition.log_end == 2


async def test_a_repeated_batch_fails_with_its_first_copy(partition: LeaderPartition, storage: MemoryStorage) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append)
    partition.append(sent(0), results.append)
    storage.unavailable = True
    storage.logs.answer()
    partition.close()

    assert [type(result) for result in results] == [StorageUnavailable, StorageUnavailable]


def _fail(_: object) -> None:
    raise RuntimeError("its connection is gone")


async def test_a_repeated_batch_is_answered_where_the_answer_to_its_first_copy_fails(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), _fail)
    partition.append(sent(0), results.append)
    with structlog.testing.capture_logs() as logged:
        storage.logs.answer()
    assert results == [Appended(0, duplicate=True)]
    assert [line["to"] for line in logged] == ["an append"]


async def test_all_waiting_readers_and_producers_are_notified_although_one_raises(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    told: list[str] = []

    def failing(name: str, size: int) -> None:
        told.append(name)
        _fail(size)

    names = {"one", "two", "three"}
    for name in names:
        partition.watch(partial(failing, name))
    partition.append(batch(), results.append)
    with structlog.testing.capture_logs() as logged:
        storage.logs.answer()
    assert results == [Appended(0)]
    assert set(told) == names
    assert {line["to"] for line in logged} == {"a fetch that waits"}


async def test_a_gap_is_refused_at_once(partition: LeaderPartition) -> None:
    partition.append(sent(0), lambda _: None)
    with pytest.raises(OutOfOrderSequence):
        partition.append(sent(5), lambda _: None)


async def test_behind_a_lost_answer_a_producer_comes_again_in_order(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append)
    storage.logs.answer()
    partition.append(sent(1), results.append)
    storage.unavailable = True
    storage.logs.answer(1)
    storage.unavailable = False
    for _ in range(5):
        await asyncio.sleep(0)
    storage.logs.answer()

    assert [type(result) for result in results] == [Appended, StorageUnavailable]
    with pytest.raises(BehindRefused):
        partition.append(sent(2), results.append)  # was in flight to this server
    for sequence in (1, 2):
        partition.append(sent(sequence), results.append)
    storage.logs.answer()
    assert [result.base_offset for result in results[2:] if isinstance(result, Appended)] == [1, 2]


async def test_batches_rejected_before_another_broker_led_the_log_block_no_producer(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Not for good. Had its producer gone on there, the log would know it, unless that was lost."""
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append)
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        partition.append(sent(3), results.append)
    partition.paused = False
    partition.release(2)
    storage.unavailable = True
    storage.logs.answer()
    storage.unavailable = False
    with pytest.raises(NotLeader):
        partition.append(sent(3), results.append)
    assert isinstance(results[0], StorageUnavailable)
    partition.lead(3)
    await partition.open()
    with pytest.raises(BehindRefused):
        partition.append(sent(9), results.append)
    clock.advance(WAIT_MS)
    with pytest.raises(OutOfOrderSequence) as refused:
        partition.append(sent(9), results.append)
    assert type(refused.value) is OutOfOrderSequence


@pytest.mark.parametrize("by_now", ["another broker's", "deleted"])
async def test_what_is_found_of_a_log_that_is_not_here_any_more_takes_nothing_offline(
    partition: LeaderPartition, by_now: str
) -> None:
    """An opening that was under way: it is the other broker that says whether the log can be opened."""
    if by_now == "deleted":
        partition.close()
    else:
        partition.release(2)
    before = partition.named
    partition.go_offline(TopicError("its stream is a string"))
    assert partition.named == before
    assert partition.offline is None
    with pytest.raises(UnknownTopic if by_now == "deleted" else NotLeader) as refused:
        partition.append(batch(1), lambda _: None)
    assert "its stream is a string" not in str(refused.value)


async def test_a_log_that_cannot_be_opened_here_names_no_leader(partition: LeaderPartition) -> None:
    partition.go_offline(TopicError("its stream is a string"))
    assert partition.offline == "its stream is a string"
    assert partition.named == Leader(partition.leader_epoch, -1)


@pytest.mark.parametrize("when", ["before", "under way", "meanwhile"])
async def test_a_new_producer_begins_with_what_was_refused_where_another_broker_led_the_log(
    partition: LeaderPartition, storage: MemoryStorage, when: str
) -> None:
    """Its second batch was not read before that one gave it back. librdkafka takes its answer for one to the first."""
    results: list[Appended | Exception] = []
    partition.paused = when == "before"
    if when == "meanwhile":
        partition.release(2)
    if when == "under way":
        partition.append(sent(0), results.append)
    else:
        with pytest.raises((StorageUnavailable, NotLeader)):
            partition.append(sent(0), results.append)
    partition.paused = False
    partition.release(2)
    storage.unavailable = True
    storage.logs.answer()
    storage.unavailable = False
    partition.lead(3)
    await partition.open()
    with pytest.raises(BehindRefused):
        partition.append(sent(1), results.append)
    for sequence in (0, 1):
        partition.append(sent(sequence), results.append)
    storage.logs.answer()
    assert results[-2:] == [Appended(0), Appended(1)]


async def test_batches_rejected_before_an_unseen_broker_led_the_log_block_no_producer(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    """Not forever. A failure after another broker has led it is rejected again; later batches must be sent again."""
    results: list[Appended | Exception] = []
    partition.lead(1)
    await partition.open()
    partition.append(sent(0), results.append)
    storage.logs.answer()
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        partition.append(sent(1), results.append)
    partition.paused = False
    partition.append(sent(4, producer=8), results.append, 2, 1_000)
    storage.logs.answer()
    partition.lead(3, partition.leader_epoch + 1)
    while not partition.is_open or partition.leader_epoch < 3:
        await asyncio.sleep(0)
    with pytest.raises(BehindRefused):
        partition.append(sent(6, producer=8), results.append)
    with pytest.raises(BehindRefused):
        partition.append(sent(9), results.append)
    clock.advance(WAIT_MS)
    with pytest.raises(OutOfOrderSequence) as refused:
        partition.append(sent(9), results.append)
    assert type(refused.value) is OutOfOrderSequence


async def test_a_new_producer_begins_with_what_was_refused_before_a_broker_unseen_led_the_log(
    partition: LeaderPartition, storage: MemoryStorage
) -> None:
    """Its second batch is on its way. librdkafka takes an answer to that for one to the first, which is lost."""
    results: list[Appended | Exception] = []
    partition.lead(1)
    await partition.open()
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        partition.append(sent(0), results.append)
    partition.paused = False
    partition.lead(3, partition.leader_epoch + 1)
    while not partition.is_open or partition.leader_epoch < 3:
        await asyncio.sleep(0)
    with pytest.raises(BehindRefused):
        partition.append(sent(1), results.append)
    partition.append(sent(0), results.append)
    partition.append(sent(1), results.append)
    storage.logs.answer()
    assert results == [Appended(0), Appended(1)]


@pytest.mark.parametrize("step", [-60_000, 60_000])
async def test_those_behind_a_refused_batch_wait_for_it_by_time_that_passes(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock, step: int
) -> None:
    """The wall clock may be set forward and back while they wait."""
    partition.append(sent(0), lambda _: None)
    storage.logs.answer()
    partition.paused = True
    with pytest.raises(StorageUnavailable):
        partition.append(sent(1), lambda _: None)
    partition.paused = False
    told: list[type] = []
    for wait_ms in (0, WAIT_MS - 1, 1):
        clock.advance(wait_ms)
        with pytest.raises(OutOfOrderSequence) as refused:
            partition.append(sent(2), lambda _: None)
        told.append(refused.type)
        clock.step(step)
    assert told == [BehindRefused, BehindRefused, OutOfOrderSequence]


async def test_another_owner_knows_the_producers(
    partition: LeaderPartition, storage: MemoryStorage, budget: CacheBudget, clock: ManualClock
) -> None:
    partition.append(sent(0), lambda _: None)
    storage.logs.answer()
    await partition.save_producers()
    other = LeaderPartition("t", 0, partition.stream, storage.logs, budget, clock, SnapshotSchedule())
    await other.open()
    results: list[Appended | Exception] = []

    other.append(sent(0), results.append)

    assert results == [Appended(0, duplicate=True)]
    assert other.leader_epoch > partition.leader_epoch
    assert other.end_of_epoch(partition.leader_epoch) == (partition.leader_epoch, 1)


async def test_a_partition_that_cannot_be_opened_is_tried_less_and_less_often(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    open_log = storage.logs.open

    async def opening(stream: str, lost: Lost, *, create: bool = False, view: int | None = None) -> OpenedLog:
        tried.append(clock.ticks_ms())
        return await open_log(stream, lost, create=create, view=view)

    monkeypatch.setattr(storage.logs, "open", opening)
    partition.append(batch(), lambda _: None)
    storage.unavailable = True
    storage.logs.answer()
    for _ in range(1_000):
        await asyncio.sleep(0)
        clock.advance(10)
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == [50, 100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]
    storage.unavailable = False
    clock.advance(2_000)
    results: list[Appended | Exception] = []
    while not results:
        await asyncio.sleep(0)
        with contextlib.suppress(StorageUnavailable):
            partition.append(batch(), results.append)
            storage.logs.answer()
    assert isinstance(results[0], Appended)


async def test_a_log_whose_slot_moves_is_left_alone_for_a_moment(
    partition: LeaderPartition, storage: MemoryStorage, clock: ManualClock
) -> None:
    """It can often be opened, and takes no records."""
    began, lost = clock.ticks_ms(), storage.logs.logs[partition.stream].lost
    assert lost is not None
    lost(StorageMoving("Redis answered: ASK 1 there"))
    epoch = partition.leader_epoch
    while partition.leader_epoch == epoch:
        await asyncio.sleep(0)
        clock.advance(10)
    assert clock.ticks_ms() - began >= 250
