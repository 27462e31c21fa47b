"""Batches in their order: those that are checked at once, those that wait, and those that are rejected."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator

import pytest

from headrace.broker.runtime.decompression import A_TURN, HERE, Decompression
from headrace.broker.topics.record_checker import CheckedBatch, RecordChecker
from headrace.records.build import build
from headrace.topics.errors import CorruptBatch, InvalidConfig, InvalidRecords, NotLeader, StorageUnavailable
from headrace.topics.model import Appended
from headrace.topics.record_checks import RecordChecks, SubjectNameStrategy, checks_of

CHECKS = RecordChecks(key=True)
SCHEMAS = checks_of(compacted=False, value=SubjectNameStrategy.TOPIC)


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

        self.checker.append(stream, CheckedBatch("t", 0, checks, batch, appended, done))

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


async def test_a_batch_in_the_turn_after_the_last_waiting_one_is_appended(log: Log) -> None:
    def later() -> None:
        asyncio.get_running_loop().call_soon(log.append, "later", small())

    log.append("large", large(), append=later)
    await log.until(2)
    assert (log.appended, log.failed) == (["large", "later"], {})


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


class Registry:
    """IDs of the subject t-value, some of which are learned from another broker."""

    def __init__(self, known: set[int], elsewhere: set[int]) -> None:
        self.known, self.elsewhere = known, elsewhere
        self.learned: list[list[int]] = []
        self.reachable = True

    def is_registered(self, reference: bytes, subject: str) -> bool:
        return subject == "t-value" and int.from_bytes(reference[1:], "big") in self.known

    def names(self, reference: bytes) -> frozenset[str]:
        return frozenset()

    async def learn(self, references: Iterable[bytes], *, names: bool) -> None:
        assert not names
        self.learned.append([int.from_bytes(each[1:], "big") for each in references])
        await asyncio.sleep(0)
        if not self.reachable:
            raise StorageUnavailable("Redis does not respond")
        self.known |= self.elsewhere


def of_schema(number: int, count: int = 1) -> bytearray:
    return build([(b"k", b"\0" + number.to_bytes(4, "big"), 1, ())] * count)


async def test_an_unknown_schema_is_looked_for_once_and_other_batches_wait(log: Log) -> None:
    registry = log.checker.schemas = Registry({1}, {2})
    log.append("known", of_schema(1), SCHEMAS)
    assert log.appended == ["known"]
    for name, number in (("from another", 2), ("behind", 1), ("unknown", 3), ("last", 2)):
        log.append(name, of_schema(number), SCHEMAS)
    assert log.appended == ["known"]
    await log.until(5)
    assert log.appended == ["known", "from another", "behind", "last"]
    assert registry.learned == [[2], [3]]
    assert isinstance(log.failed["unknown"], InvalidRecords)
    with pytest.raises(InvalidRecords, match="no valid schema ID"):
        log.append("plain", small(), SCHEMAS)
    assert registry.learned == [[2], [3]]


async def test_a_registry_that_cannot_be_reached_is_an_error_to_retry(log: Log) -> None:
    log.checker.schemas = Registry(set(), {2})
    log.checker.schemas.reachable = False
    log.append("one", of_schema(2), SCHEMAS)
    await log.until(1)
    assert isinstance(log.failed["one"], StorageUnavailable)


async def test_checks_that_need_a_disabled_registry_cannot_begin(log: Log) -> None:
    log.checker.check_attainable(None)
    log.checker.check_attainable(CHECKS)
    with pytest.raises(InvalidConfig, match=r"value.schema.validation=true: .*set schema.registry.enable=true"):
        log.checker.check_attainable(SCHEMAS)
    log.checker.check_attainable(SCHEMAS, SCHEMAS)
    with pytest.raises(InvalidRecords, match=r"schema\.registry\.enable"):
        log.append("one", of_schema(1), SCHEMAS)
    log.checker.schemas = Registry(set(), set())
    log.checker.check_attainable(SCHEMAS)
