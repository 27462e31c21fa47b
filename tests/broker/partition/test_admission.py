"""Batches that wait for the coordinator of their transaction."""

import asyncio

import pytest
from tests.broker.transactional import Log, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.leader import LeaderPartition
from headrace.topics.errors import (
    BehindRefused,
    InvalidProducerEpoch,
    InvalidRecord,
    MissingTransactionalId,
    StorageUnavailable,
    TransactionUnverified,
)
from headrace.topics.model import Appended


def test_without_a_coordinator_transactional_batches_are_rejected(partition: LeaderPartition) -> None:
    with pytest.raises(InvalidRecord, match="no transactions"):
        partition.append(sent(0), lambda _: None)


def test_a_request_without_an_id_has_no_transactional_batches(log: Log) -> None:
    with pytest.raises(MissingTransactionalId):
        log.append(sent(0, transaction=""))


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


@pytest.mark.parametrize("records", [0, 1])
async def test_the_next_transaction_outlasts_a_late_marker(log: Log, records: int) -> None:
    """EndTxn of the second protocol may respond before the markers, and the producer goes on in the next epoch."""
    log.stored(*(sent(number, adds=True) for number in range(records)), number=4)
    log.results.clear()
    log.append(sent(0, epoch=1, adds=True), sent(1, epoch=1, adds=True))
    log.end(epoch=1, number=4)
    log.storage.logs.answer()
    assert log.results == [], "it still waits for its coordinator"
    log.coordinator.answer(5)
    log.storage.logs.answer()
    first = 2 * records  # the record of the first transaction, and its marker
    assert log.results == [Appended(first), Appended(first + 1)]
    assert log.ends == (first + 2, first)


@pytest.mark.parametrize("number", [3, 4])
async def test_a_confirmation_of_the_transaction_that_has_ended_is_void(log: Log, number: int) -> None:
    log.append(sent(0, epoch=1, adds=True))
    log.end(epoch=1, number=4)
    log.coordinator.answer(number)
    [rejected] = log.results
    assert isinstance(rejected, TransactionUnverified)
    assert log.ends == (0, 0)


async def test_batches_of_the_epoch_that_has_ended_do_not_wait(log: Log) -> None:
    log.append(sent(0, adds=True))
    log.end(epoch=1, number=4)
    [rejected] = log.results
    assert isinstance(rejected, TransactionUnverified)


async def test_a_confirmation_by_an_earlier_coordinator_is_void(log: Log) -> None:
    log.append(sent(0))
    log.coordinator.answer(4)
    log.storage.logs.answer()
    log.finish(commit=False, number=4)
    ends = log.ends
    log.append(sent(1))
    log.coordinator.answer(4)
    log.storage.logs.answer()
    rejected = log.results.pop()
    assert isinstance(rejected, TransactionUnverified)
    assert log.ends == ends
    log.append(sent(1))
    log.coordinator.answer(5)
    log.storage.logs.answer()
    assert log.results[-1] == Appended(ends[0])


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


async def test_storage_is_prepared_before_the_first_transactional_batch(log: Log, storage: MemoryStorage) -> None:
    storage.logs.allowed = False
    log.coordinator.number = 1
    log.append(sent(0))
    assert storage.logs.waiting == []
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(storage.logs.waiting) == 1
