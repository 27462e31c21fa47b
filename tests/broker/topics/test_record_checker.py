"""Batches in their order: those that are checked at once, those that wait, and those that are rejected."""

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest

from headrace.broker.runtime.decompression import A_TURN, HERE, Decompression
from headrace.broker.topics.record_checker import RecordChecker
from headrace.records.build import build
from headrace.topics.errors import CorruptBatch, InvalidRecords, NotLeader, StorageUnavailable
from headrace.topics.model import Appended
from headrace.topics.record_checks import RecordChecks

CHECKS = RecordChecks(key=True)


@pytest.fixture
def decompression() -> Iterator[Decompression]:
    made = Decompression()
    yield made
    made.close()


class Log:
    """Batches by name, as they come out of a checker."""

    def __init__(self, decompression: Decompression) -> None:
        self.checker = RecordChecker(decompression)
        self.appended: list[str] = []
        self.failed: dict[str, Appended | Exception] = {}

    def append(
        self,
        name: str,
        batch: bytearray,
        checks: RecordChecks | None = CHECKS,
        append: Callable[[], None] | None = None,
        stream: str = "s",
    ) -> None:
        def done(result: Appended | Exception) -> None:
            self.failed[name] = result

        def appended() -> None:
            if append is not None:
                append()
            self.appended.append(name)

        self.checker.append(stream, "t-0", checks, batch, appended, done)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.appended) + len(self.failed) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
def log(decompression: Decompression) -> Log:
    return Log(decompression)


def small(key: bytes | None = b"k") -> bytearray:
    return build([(key, b"v", 1, ())])


def large(key: bytes | None = b"k", codec: int = 0, size: int = HERE + 1) -> bytearray:
    return build([(b"k", os.urandom(size), 1, ()), (key, b"", 1, ())], codec=codec)


async def test_a_small_batch_is_appended_at_once(log: Log) -> None:
    log.append("one", small())
    log.append("two", small())
    assert log.appended == ["one", "two"]


async def test_a_rejected_batch_is_reported_at_once(log: Log) -> None:
    with pytest.raises(InvalidRecords):
        log.append("one", small(None))
    damaged = small()
    damaged[61] = 0xFF
    with pytest.raises(CorruptBatch, match="cannot be read"):
        log.append("two", damaged)
    assert log.appended == []


@pytest.mark.parametrize("codec", [0, 3, 4])
async def test_batches_behind_a_large_one_keep_their_order(log: Log, codec: int) -> None:
    log.append("large", large(codec=codec))
    log.append("small", small())
    log.append("unchecked", small(None), None)
    log.append("other", small(), stream="other")
    assert log.appended == ["other"]
    await log.until(4)
    assert log.appended == ["other", "large", "small", "unchecked"]
    log.append("later", small())
    assert log.appended[-1] == "later"


async def test_what_expands_beyond_the_first_thread_goes_to_the_second(log: Log) -> None:
    log.append("huge", build([(b"k", bytes(17 << 20), 1, ())], codec=4))
    await log.until(1)
    assert log.appended == ["huge"]


async def test_a_waiting_batch_that_is_rejected_stops_no_other(log: Log) -> None:
    log.append("large", large(None))
    log.append("keyless", small(None))
    log.append("small", small())
    await log.until(3)
    assert log.appended == ["small"]
    assert {name: type(error) for name, error in log.failed.items()} == {
        "large": InvalidRecords,
        "keyless": InvalidRecords,
    }


async def test_a_partition_that_refuses_a_waiting_batch_reports_it_to_its_producer(log: Log) -> None:
    def refuse() -> None:
        raise NotLeader("another broker leads it")

    log.append("large", large(), append=refuse)
    log.append("small", small())
    await log.until(2)
    assert log.appended == ["small"]
    assert isinstance(log.failed["large"], NotLeader)
    with pytest.raises(NotLeader):
        log.append("again", small(), append=refuse)


async def test_small_batches_wait_for_the_next_turn_once_this_one_is_over(
    log: Log, decompression: Decompression
) -> None:
    decompression.count(A_TURN)
    log.append("one", small())
    log.append("two", small())
    assert log.appended == []
    await log.until(2)
    assert log.appended == ["one", "two"]


async def test_batches_that_wait_at_the_end_are_not_stored(log: Log) -> None:
    log.append("large", large())
    log.append("small", small())
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await log.until(2)
    assert log.appended == []
    assert {type(error) for error in log.failed.values()} == {StorageUnavailable}
