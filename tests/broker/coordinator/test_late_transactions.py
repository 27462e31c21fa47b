"""Transactions that are open for longer than any timeout: a leader asks the coordinator, on a clock moved by hand."""

import structlog
from tests.broker.coordinator.test_cluster_transactions import ends, finish, init, send
from tests.broker.world import World
from tests.harness.coordinated import turns
from tests.harness.waiting import until

from headrace.broker.coordinator.late_transactions import GRACE_MS, LateTransactions, MayEnd
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Appended
from headrace.topics.transactions import OpenTransaction
from headrace.transactions.model import DropTransaction, PartitionId, TransactionSettings

LATE_MS = TransactionSettings().max_timeout_ms + GRACE_MS
MINUTE_MS = 60_000


async def lose(world: World) -> None:
    """Storage loses the transactional ID, and the next server does not know it."""
    await world.storage.transactions.save("id", DropTransaction())
    await world.restart()


def aborted(world: World) -> list[tuple[int, int]]:
    log = world.flights.partitions[0].log
    assert log is not None
    assert log.transactions is not None
    found = log.transactions.aborted
    return [(each.first_offset, each.marker_offset) for each in found.last(len(found))]


def late(world: World, may_end: MayEnd) -> LateTransactions:
    topics = [world.flights]
    return LateTransactions(topics, world.clock, CooperativeScheduler(), lambda: LATE_MS - GRACE_MS, may_end)


async def test_a_transaction_that_its_coordinator_has_lost_is_aborted_once_it_is_late(world: World) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    await lose(world)
    assert ends(world) == (1, 0), "the log still has it"
    with structlog.testing.capture_logs() as lines:
        for _ in range(LATE_MS // MINUTE_MS):
            world.clock.advance(MINUTE_MS)
            await turns()
        assert ends(world) == (1, 0), "not late yet"
        world.clock.advance(MINUTE_MS)
        await until(lambda: ends(world) == (2, 2))
    assert [line["transactional_id"] for line in lines if line["log_level"] == "error"] == ["id"]
    assert aborted(world) == [(0, 1)]
    # The producer must begin again.
    assert isinstance(await send(world, producer), Exception)
    again = await init(world)
    assert isinstance(await send(world, again), Appended)
    assert await finish(world, again, commit=True) is None
    assert ends(world) == (4, 4)


async def opened(world: World) -> tuple[int, int]:
    """A log with a transaction that is late."""
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    await lose(world)
    world.clock.advance(LATE_MS + 1)
    return producer


async def test_the_question_names_the_transaction_and_its_partition(world: World) -> None:
    producer_id, epoch = await opened(world)
    asked: list[tuple[str, int, int, int, PartitionId]] = []

    async def may_end(transaction: OpenTransaction, place: PartitionId) -> bool:
        asked.append((*transaction[5:], *transaction[:3], place))
        return True

    assert await late(world, may_end).check() == 0
    assert asked == [("id", producer_id, 0, epoch, PartitionId(world.flights.topic.id, 0))]
    assert ends(world) == (1, 0)


async def test_a_transaction_is_left_open_while_its_coordinator_does_not_respond(world: World) -> None:
    await opened(world)

    async def may_end(*_: object) -> bool:
        raise StorageUnavailable("the coordinator loads")

    with structlog.testing.capture_logs() as lines:
        assert await late(world, may_end).check() == 0
    assert [(line["log_level"], line["reason"]) for line in lines] == [("warning", "the coordinator loads")]
    assert ends(world) == (1, 0)


async def test_a_transaction_that_ends_during_the_question_gets_no_other_marker(world: World) -> None:
    await opened(world)

    async def no(*_: object) -> bool:
        return False

    async def may_end(*_: object) -> bool:
        assert await late(world, no).check() == 1
        return False

    assert await late(world, may_end).check() == 0
    assert ends(world) == (2, 2)


async def test_a_transaction_without_a_known_id_is_left_to_an_administrator(world: World) -> None:
    await opened(world)
    log = world.flights.partitions[0].log
    assert log is not None
    assert log.transactions is not None
    ((producer_id, known),) = log.transactions.open.items()
    # As after a failure before the first snapshot with the transaction.
    log.transactions.open[producer_id] = known._replace(transactional_id="")

    async def no(*_: object) -> bool:
        return False

    assert await late(world, no).check() == 0
    assert ends(world) == (1, 0)


async def test_a_transaction_that_its_coordinator_still_has_is_not_aborted_by_the_leader(world: World) -> None:
    await world.topic()
    producer = await init(world)
    assert isinstance(await send(world, producer), Appended)
    log = world.flights.partitions[0].log
    assert log is not None
    assert log.transactions is not None
    (transaction,) = log.transactions.open.values()
    may_end, topic_id = world.broker.transactions.may_end_in, world.flights.topic.id
    assert await may_end(transaction, PartitionId(topic_id, 0))
    assert not await may_end(transaction, PartitionId(topic_id, 1))
    assert not await may_end(transaction._replace(producer_id=999), PartitionId(topic_id, 0))
