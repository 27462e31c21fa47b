"""`min.insync.replicas` above 1 in one partition: who is told when, and what can be read meanwhile."""

import pytest
from tests.broker.test_log import batch, sent
from tests.harness.memory import MemoryStorage

from headrace.broker.cache import CacheBudget
from headrace.broker.log import LogPartition
from headrace.topics.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotLeader
from headrace.topics.model import Appended

TOO_FEW = NotEnoughReplicasAfterAppend("1 has it")


async def test_a_batch_is_acknowledged_and_readable_when_the_replicas_have_it(
    partition: LogPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (3, [Appended(0)])


async def test_acks_1_does_not_wait_and_readers_do(partition: LogPartition, storage: MemoryStorage) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 0)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [Appended(0)])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (3, [Appended(0)])


async def test_where_the_replicas_do_not_come_the_producer_is_told_and_readers_go_on(
    partition: LogPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)
    assert (partition.log_end, results) == (3, [TOO_FEW])

    storage.logs.copies.why = "1 has it"
    with pytest.raises(NotEnoughReplicas, match="1 has it"):
        partition.append(batch(3), results.append, 2, 1_000)
    partition.append(batch(2), results.append, 2, 0)
    partition.append(batch(2), results.append)
    storage.logs.answer()
    storage.logs.copies.answer(TOO_FEW)

    assert (partition.log_end, results) == (7, [TOO_FEW, Appended(3), Appended(5)])


async def test_a_repeated_batch_is_acknowledged_only_with_its_copies(
    partition: LogPartition, storage: MemoryStorage
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
    assert partition.log_end == 2


async def test_what_nobody_waits_for_comes_in_order_when_the_setting_is_lowered(
    partition: LogPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 1_000)
    partition.append(batch(2), results.append)
    storage.logs.answer()
    assert (partition.log_end, results) == (0, [Appended(3)])

    storage.logs.copies.answer()

    assert (partition.log_end, results) == (5, [Appended(3), Appended(0)])


async def test_whoever_waits_is_told_when_another_broker_takes_over(
    partition: LogPartition, storage: MemoryStorage
) -> None:
    results: list[Appended | Exception] = []
    partition.append(sent(0), results.append, 2, 1_000)
    storage.logs.answer()
    partition.release(7, None)
    assert [type(result) for result in results] == [NotLeader]

    storage.logs.copies.answer()

    assert len(results) == 1
    partition.lead(8)
    await partition.open()
    partition.append(sent(0), results.append, 2, 1_000)
    storage.logs.copies.answer()
    assert results[1:] == [Appended(0, duplicate=True)]
    assert partition.log_end == 1


async def test_what_waits_for_slow_replicas_is_bounded_whoever_waits_for_it(
    partition: LogPartition, storage: MemoryStorage, budget: CacheBudget
) -> None:
    """Who sent it may have its answer, or be gone: it is held all the same."""
    budget.most_held = 1
    results: list[Appended | Exception] = []
    partition.append(batch(3), results.append, 2, 0)
    storage.logs.answer()
    for copies, wait_ms in ((2, 0), (2, 1_000), (1, 0)):
        with pytest.raises(NotEnoughReplicas, match="wait for the replicas of Redis, which lag behind"):
            partition.append(batch(3), results.append, copies, wait_ms)
    assert results == [Appended(0)]

    storage.logs.copies.answer()
    partition.append(batch(2), results.append, 2, 0)
    storage.logs.answer()
    assert results[1:] == [Appended(3)]

    # What another broker has now is not held here.
    partition.release(7, None)
    partition.lead(8)
    await partition.open()
    partition.append(batch(2), results.append, 2, 0)
