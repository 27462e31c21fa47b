"""The leader of a log with transactions: what it verifies, places, ends and shows, on a manual clock."""

import asyncio
from collections.abc import Callable

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.admission import AdmitDone
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.participant import end_transaction
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED
from headrace.records.build import build
from headrace.records.markers import Marker
from headrace.testing.clock import ManualClock
from headrace.topics.errors import (
    BehindRefused,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    MissingTransactionalId,
    NotLeader,
    StorageUnavailable,
    TransactionUnverified,
)
from headrace.topics.model import Append, Appended


def sent(sequence: int, *, epoch: int = 0, producer: int = 7, count: int = 1, transaction: str | None = "id") -> Append:
    records = [(None, b"value", 1_000, ())] * count
    made = build(
        records,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transaction is not None,
    )
    return Append(made, count, 1_000, producer, epoch, sequence, transaction)


class Coordinator:
    """Confirms transactions when a test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Append, AdmitDone]] = []
        self.number: int | None = None
        """Confirm at once with this number."""

    def __call__(self, topic: str, index: int, append: Append, done: AdmitDone) -> None:
        assert (topic, index) == ("t", 0)
        if self.number is not None:
            done(self.number)
        else:
            self.asked.append((append, done))

    def answer(self, result: int | Exception = 1) -> None:
        """Answer the oldest question."""
        self.asked.pop(0)[1](result)


class Log:
    """A partition with its coordinator, and the results of its requests."""

    def __init__(self, partition: LeaderPartition, storage: MemoryStorage) -> None:
        self.partition = partition
        self.storage = storage
        self.coordinator = Coordinator()
        partition.admission.admit = self.coordinator
        storage.logs.allowed = True
        self.results: list[Appended | Exception] = []
        self.ended: list[Exception | None] = []

    def append(self, *appends: Append) -> None:
        for each in appends:
            self.partition.append(each, self.results.append)

    def stored(self, *appends: Append) -> None:
        """Append confirmed batches."""
        self.coordinator.number = 1
        self.append(*appends)
        self.storage.logs.answer()
        self.coordinator.number = None

    def end(self, *, commit: bool = True, epoch: int = 0, number: int = -1, producer: int = 7) -> None:
        end_transaction(self.partition, Marker(producer, epoch, commit, number), self.ended.append)

    def finish(self, *, commit: bool = True, epoch: int = 0, number: int = -1, producer: int = 7) -> None:
        """End it, and store the marker."""
        self.end(commit=commit, epoch=epoch, number=number, producer=producer)
        self.storage.logs.answer()
        assert self.ended.pop() is None

    @property
    def ends(self) -> tuple[int, int]:
        """High watermark and last stable offset."""
        return self.partition.visible_end(UNCOMMITTED), self.partition.visible_end(COMMITTED)

    def aborted(self) -> list[tuple[int, int]]:
        return [(each.producer_id, each.first_offset) for each in self.partition.aborted(0, self.partition.log_end)]


@pytest.fixture
def log(partition: LeaderPartition, storage: MemoryStorage) -> Log:
    return Log(partition, storage)


def test_without_a_coordinator_transactional_batches_are_rejected(partition: LeaderPartition) -> None:
    with pytest.raises(InvalidRecord, match="no transactions"):
        partition.append(sent(0), lambda _: None)


def test_a_request_without_an_id_has_no_transactional_batches(log: Log) -> None:
    with pytest.raises(MissingTransactionalId):
        log.append(sent(0, transaction=""))


async def test_the_last_stable_offset_stays_until_the_marker_is_stored(log: Log) -> None:
    log.append(sent(0))
    assert (log.results, log.ends) == ([], (0, 0)), "it waits for the coordinator"
    log.coordinator.answer()
    log.storage.logs.answer()
    log.append(sent(1), sent(0, producer=8, transaction=None))
    log.storage.logs.answer()
    assert (log.results, log.ends) == ([Appended(0), Appended(1), Appended(2)], (3, 0))
    log.end()
    assert (log.ended, log.ends) == ([], (3, 0))
    log.storage.logs.answer()
    assert (log.ended, log.ends) == ([None], (4, 4))
    assert log.aborted() == []


async def test_an_aborted_transaction_is_listed(log: Log) -> None:
    log.stored(sent(0), sent(0, producer=8))
    log.finish(commit=False)
    assert (log.ends, log.aborted()) == ((3, 1), [(7, 0)])
    log.finish(commit=True, producer=8)
    assert (log.ends, log.aborted()) == ((4, 4), [(7, 0)])
    assert log.partition.aborted(3, 4) == []


async def test_only_the_first_batch_of_a_transaction_is_verified(log: Log) -> None:
    log.stored(sent(0))
    log.append(sent(1), sent(2))
    assert log.coordinator.asked == []
    log.storage.logs.answer()
    log.finish()
    log.append(sent(2))
    assert log.coordinator.asked == [], "a repeated batch"
    log.append(sent(3))
    assert len(log.coordinator.asked) == 1


# Trap 2 (KAFKA-14884)


async def test_a_confirmation_from_before_the_marker_is_void(log: Log) -> None:
    log.append(sent(0))
    log.end(commit=False, epoch=1, number=4)
    [rejected] = log.results
    assert isinstance(rejected, TransactionUnverified)
    log.coordinator.answer()
    log.storage.logs.answer()
    assert len(log.results) == 1
    assert log.ends == (0, 0)
    with pytest.raises(InvalidProducerEpoch):
        log.append(sent(0, transaction=None))


async def test_a_confirmation_of_an_earlier_question_does_not_count_for_the_next(log: Log) -> None:
    log.append(sent(0))
    log.end(commit=False)
    log.append(sent(0))
    first, second = log.coordinator.asked
    first[1](1)
    log.storage.logs.answer()
    assert (len(log.results), log.ends) == (1, (0, 0))
    second[1](2)
    log.storage.logs.answer()
    assert log.results[1:] == [Appended(0)]


async def test_a_recovery_voids_what_waits(log: Log) -> None:
    log.append(sent(0))
    log.partition.on_lost(StorageUnavailable("lost"))
    assert isinstance(log.results[0], StorageUnavailable)
    log.coordinator.answer()
    assert len(log.results) == 1


# Trap 3 (KAFKA-14904)


async def test_later_batches_wait_after_the_first_and_none_is_stored_without_it(log: Log) -> None:
    log.append(*(sent(number) for number in range(5)))
    assert len(log.coordinator.asked) == 1
    log.coordinator.answer(StorageUnavailable("the coordinator is not available"))
    assert [type(each) for each in log.results] == [StorageUnavailable] * 5
    assert log.storage.logs.waiting == []
    log.results.clear()
    log.stored(sent(1), sent(2))
    assert [type(each) for each in log.results] == [BehindRefused] * 2
    log.results.clear()
    log.stored(*(sent(number) for number in range(5)))
    assert log.results == [Appended(number) for number in range(5)]


async def test_batches_that_waited_keep_their_order(log: Log) -> None:
    log.append(*(sent(number) for number in range(5)), sent(0, producer=8, transaction=None))
    log.coordinator.answer()
    log.storage.logs.answer()
    assert log.results == [Appended(0), *(Appended(number) for number in range(1, 6))]
    assert [each.base_offset for each in log.storage.logs.logs[log.partition.stream].batches] == list(range(6))


async def test_a_plain_batch_does_not_fit_an_open_transaction(log: Log) -> None:
    log.stored(sent(0))
    with pytest.raises(InvalidTransactionState):
        log.append(sent(1, transaction=None))


# Ends


async def test_an_end_without_a_transaction_appends_nothing_and_fences(log: Log) -> None:
    log.stored(sent(0))
    log.finish(number=1)
    log.end(epoch=3, number=2)
    assert log.storage.logs.waiting == []
    with pytest.raises(InvalidProducerEpoch):
        log.append(sent(1))


async def test_a_noted_end_succeeds_once_it_is_saved(log: Log) -> None:
    log.storage.unavailable = True
    log.end(epoch=3, number=2)
    for _ in range(5):
        await asyncio.sleep(0)
    [error] = log.ended
    assert isinstance(error, StorageUnavailable)
    log.storage.unavailable = False
    log.end(epoch=3, number=2)
    for _ in range(5):
        await asyncio.sleep(0)
    assert log.ended == [error, None]
    stored = log.storage.logs.logs[log.partition.stream].producers[7]
    assert (stored.epoch, stored.ended) == (3, 2)


async def test_a_repeated_end_waits_for_the_marker_and_does_not_end_the_next_transaction(log: Log) -> None:
    log.stored(sent(0))
    log.end(number=1)
    log.end(number=1)
    assert log.ended == []
    log.storage.logs.answer()
    assert log.ended == [None, None]
    log.stored(sent(1))
    log.end(number=1)
    assert (len(log.storage.logs.waiting), log.ends) == (0, (3, 2))
    log.finish(number=2)
    assert log.ends == (4, 4)


async def test_an_end_with_a_lower_epoch_is_rejected(log: Log) -> None:
    log.stored(sent(0, epoch=2))
    log.end(epoch=1)
    assert isinstance(log.ended[0], InvalidProducerEpoch)


@pytest.mark.parametrize("saved", [False, True])
async def test_the_number_survives_a_recovery(log: Log, storage: MemoryStorage, saved: bool) -> None:
    """Otherwise a repeated end of the last transaction would end the next one, in the same epoch."""
    log.stored(sent(0))
    log.finish(number=5)
    if saved:
        await log.partition.save_producers()
    await log.partition.open()
    log.stored(sent(1))
    log.end(number=5)
    assert log.storage.logs.waiting == []
    assert log.ends == (3, 2)


async def test_a_failed_marker_leaves_the_transaction_open(log: Log, storage: MemoryStorage) -> None:
    log.stored(sent(0))
    log.end(commit=False)
    storage.unavailable = True
    log.storage.logs.answer()
    assert isinstance(log.ended[0], StorageUnavailable)
    storage.unavailable = False
    await log.partition.open()
    assert (log.ends, log.aborted()) == ((1, 0), [])
    log.finish(commit=False)
    assert (log.ends, log.aborted()) == ((2, 2), [(7, 0)])


# Readers


async def test_readers_of_committed_records_are_woken_by_the_last_stable_offset_only(log: Log) -> None:
    plain: list[int] = []
    stable: list[int] = []
    log.partition.watch(plain.append)
    log.partition.watch(stable.append, COMMITTED)
    log.stored(sent(0, producer=8, transaction=None))
    assert (len(plain), len(stable)) == (1, 1)
    log.stored(sent(0), *(sent(number, producer=8, transaction=None) for number in range(1, 10)))
    assert (len(plain), len(stable)) == (11, 1)
    log.finish()
    assert (len(plain), len(stable)) == (12, 2)
    assert stable[-1] == sum(plain[1:])
    log.stored(sent(10, producer=8, transaction=None))
    assert (len(plain), len(stable)) == (13, 3)


async def test_the_last_stable_offset_is_never_above_the_high_watermark(log: Log, clock: ManualClock) -> None:
    """Trap 10 (KAFKA-13194, KAFKA-9807): replicas are late."""
    log.partition.want_copies(2)
    log.coordinator.number = 1
    log.partition.append(sent(0), log.results.append, 2, 30_000)
    log.storage.logs.answer()
    assert log.ends == (0, 0)
    log.storage.logs.copies.answer()
    assert log.ends == (1, 0)
    log.end(commit=False)
    log.storage.logs.answer()
    assert (log.ends, log.ended) == ((1, 0), []), "the marker may be lost"
    await log.partition.save_producers()
    await log.partition.open()
    assert log.ends == (1, 0), "nor does a recovery know that it is replicated"
    log.storage.logs.copies.come()
    assert (log.ends, log.aborted()) == ((2, 2), [(7, 0)])


async def test_deleted_records_do_not_lose_the_end_of_their_transaction(log: Log) -> None:
    """Trap 11 (KAFKA-8542, KAFKA-5435)."""
    log.stored(sent(0), sent(1))
    await log.partition.delete_before(2)
    assert log.ends == (2, 2)
    log.stored(sent(2))
    await log.partition.open()
    assert log.ends == (3, 2)
    log.finish()
    assert log.ends == (4, 4)


async def test_retention_keeps_what_is_not_stable(log: Log) -> None:
    log.stored(sent(0, producer=8, transaction=None), sent(0), sent(1))
    await log.partition.trim(None, 0)
    assert log.partition.log_start == 1
    log.finish()
    await log.partition.trim(None, 0)
    assert log.partition.log_start >= 3


async def test_a_lost_index_is_rebuilt_before_committed_records_are_served(
    log: Log, storage: MemoryStorage, drop_cached: Callable[[], None]
) -> None:
    """Trap 25: aborted records must not appear as committed."""
    log.stored(sent(0))
    log.finish(commit=False)
    await log.partition.save_producers()
    stored = storage.logs.logs[log.partition.stream]
    stored.aborted, stored.unstable, stored.index_lost = [], {}, True
    await log.partition.open()
    assert log.ends == (2, 0)
    with pytest.raises(NotLeader):
        log.partition.check_stable()
    with pytest.raises(NotLeader):
        log.append(sent(1))
    log.end()
    assert isinstance(log.ended[0], NotLeader)
    woken: list[int] = []
    log.partition.watch(woken.append, COMMITTED)
    for _ in range(5):
        await asyncio.sleep(0)
    log.partition.check_stable()
    assert (log.ends, log.aborted(), len(woken)) == ((2, 2), [(7, 0)], 1)
    await log.partition.save_producers()
    assert [each.first_offset for each in stored.aborted] == [0]


async def test_storage_is_prepared_before_the_first_transactional_batch(log: Log, storage: MemoryStorage) -> None:
    storage.logs.allowed = False
    log.coordinator.number = 1
    log.append(sent(0))
    assert storage.logs.waiting == []
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(storage.logs.waiting) == 1


async def test_an_administrator_ends_a_transaction_without_its_number(log: Log) -> None:
    """The number of the last transaction stays, so that the coordinator's own end is not taken for a repeated one."""
    log.stored(sent(0))
    log.finish(number=5)
    log.stored(sent(1))
    log.finish(commit=False)
    [described] = log.partition.producer_states()
    assert (described.ended, described.transaction_start, described.last_sequence) == (5, -1, 1)
    log.stored(sent(2))
    assert next(log.partition.producer_states()).transaction_start == 4
    log.finish(number=6)
    assert log.ends == (6, 6)
