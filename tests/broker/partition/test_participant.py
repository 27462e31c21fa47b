"""Ends of transactions in a partition: placed, noted and repeated."""

import asyncio

import pytest
from tests.broker.transactional import Log, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.partition.participant import transaction_ended
from headrace.records.markers import Marker
from headrace.topics.errors import (
    InvalidProducerEpoch,
    StorageUnavailable,
)


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
    log.stored(sent(1), number=2)
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
    log.stored(sent(1), number=6)
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


async def test_an_administrator_ends_a_transaction_without_its_number(log: Log) -> None:
    """The number of the last transaction stays, so that the coordinator's own end is not taken for a repeated one."""
    log.stored(sent(0))
    log.finish(number=5)
    log.stored(sent(1), number=6)
    log.finish(commit=False)
    [described] = log.partition.producer_states()
    assert (described.ended, described.transaction_start, described.last_sequence) == (5, -1, 1)
    log.stored(sent(2), number=6)
    assert next(log.partition.producer_states()).transaction_start == 4
    log.finish(number=6)
    assert log.ends == (6, 6)


async def test_a_caller_waits_for_the_marker_or_gets_the_error(log: Log) -> None:
    log.stored(sent(0, epoch=1))
    waiting = asyncio.ensure_future(transaction_ended(log.partition, Marker(7, 1, commit=True, number=1)))
    await asyncio.sleep(0)
    assert not waiting.done()
    log.storage.logs.answer()
    await waiting
    with pytest.raises(InvalidProducerEpoch):
        await transaction_ended(log.partition, Marker(7, 0, commit=True, number=2))
