"""The last stable offset of a log, as its leader knows it."""

import pytest
from tests.broker.transactional import Log, sent

from headrace.broker.partition.source import COMMITTED
from headrace.testing.clock import ManualClock
from headrace.topics.errors import (
    InvalidTransactionState,
)
from headrace.topics.model import Appended


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


async def test_a_plain_batch_does_not_fit_an_open_transaction(log: Log) -> None:
    log.stored(sent(0))
    with pytest.raises(InvalidTransactionState):
        log.append(sent(1, transaction=None))


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
