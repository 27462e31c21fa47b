"""Producers of all logs together: those silent for longest go early, and none that may still repeat a batch."""

import asyncio

import pytest

from headrace.broker.partition.producer_total import LEAST_SILENT_MS, ProducerTotal
from headrace.testing.clock import ManualClock
from headrace.topics.append import OffsetAssigner
from headrace.topics.errors import BehindRefused, TooManyProducers
from headrace.topics.model import Append
from headrace.topics.rejected_batches import RejectedBatches

_DAY_MS = 86_400_000


class _Log:
    """A log with its owner, as far as its producers count."""

    def __init__(self, total: ProducerTotal, clock: ManualClock) -> None:
        self._clock = clock
        self.refusals = RejectedBatches(clock.ticks_ms, total.try_take)
        self.owner = OffsetAssigner(0, refused=self.refusals, count=total.take)
        total.add(self)

    @property
    def producers(self) -> int:
        return len(self.owner.producers) + len(self.refusals.first)

    def expire_silent(self, silent_ms: int) -> None:
        self.owner.expire(self._clock.now_ms() - silent_ms)
        self.refusals.expire(silent_ms)

    def produce(self, producer_id: int, sequence: int = 0) -> None:
        self.owner.assign(_batch(producer_id, sequence), self._clock.now_ms())

    def refuse(self, producer_id: int, sequence: int = 0) -> None:
        self.refusals.refuse(_batch(producer_id, sequence))


def _batch(producer_id: int, sequence: int) -> Append:
    return Append(
        bytearray(), span=1, max_timestamp=-1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def total(clock: ManualClock) -> ProducerTotal:
    return ProducerTotal(100, _DAY_MS, clock)


async def _settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_producers_that_were_heard_of_lately_are_kept_and_new_ones_refused(
    total: ProducerTotal, clock: ManualClock
) -> None:
    logs = [_Log(total, clock) for _ in range(10)]
    for producer in range(10):
        for log in logs:
            log.produce(producer)
    await _settle()
    with pytest.raises(TooManyProducers, match=r"headrace\.max\.producers"):
        logs[0].produce(99)
    # A repetition is known, and those that go on are served.
    logs[0].produce(3)
    logs[0].produce(3, 1)
    assert logs[0].owner.next_offset == 11
    assert sum(log.producers for log in logs) == 100


async def test_those_silent_for_longest_are_forgotten_early(total: ProducerTotal, clock: ManualClock) -> None:
    logs = [_Log(total, clock) for _ in range(10)]
    for producer in range(8):
        for log in logs:
            log.produce(producer)
    clock.advance(_DAY_MS // 2)
    for log in logs:
        log.produce(8)
    logs[9].produce(9)
    await _settle()
    assert [log.producers for log in logs] == [1] * 9 + [2]
    for producer in range(100, 170):
        logs[0].produce(producer)
    assert logs[0].producers == 71


async def test_none_is_forgotten_within_the_time_in_which_clients_repeat_a_batch(
    total: ProducerTotal, clock: ManualClock
) -> None:
    log = _Log(total, clock)
    for producer in range(95):
        log.produce(producer)
    clock.advance(LEAST_SILENT_MS - 1)
    log.produce(95)
    await _settle()
    assert log.producers == 96
    clock.advance(1_001)
    log.produce(96)
    await _settle()
    assert set(log.owner.producers) == {95, 96}


async def test_a_log_that_is_gone_counts_no_more(total: ProducerTotal, clock: ManualClock) -> None:
    log = _Log(total, clock)
    for producer in range(100):
        log.produce(producer)
    del log
    other = _Log(total, clock)
    with pytest.raises(TooManyProducers):
        other.produce(1)
    await _settle()
    other.produce(1)


async def test_what_a_log_knows_when_it_is_opened_counts(total: ProducerTotal, clock: ManualClock) -> None:
    total.opened(100)
    log = _Log(total, clock)
    with pytest.raises(TooManyProducers):
        log.produce(1)


async def test_producers_that_were_refused_for_a_moment_count(total: ProducerTotal, clock: ManualClock) -> None:
    """While storage is away a client can send batches under one new producer id after the other."""
    logs = [_Log(total, clock) for _ in range(10)]
    for producer in range(50):
        for log in logs:
            log.refuse(producer)
    assert sum(log.producers for log in logs) == 100
    # Whichever was forgotten may be the one whose second batch comes now: it waits for the first.
    with pytest.raises(BehindRefused):
        logs[9].produce(3, 1)
    await _settle()
    clock.advance(LEAST_SILENT_MS + 1_000)
    with pytest.raises(TooManyProducers):
        logs[0].produce(99)
    await _settle()
    assert sum(log.producers for log in logs) == 0
    logs[0].produce(99)
