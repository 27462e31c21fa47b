"""Pending offsets in the coordinator: verification, visibility, and transactions that are lost."""

import asyncio

import msgspec
import pytest
from tests.broker.members import PARTITION, commit
from tests.harness.memory import MemoryStorage

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.partition.leader import LeaderPartition
from headrace.groups.effects import CommitResult, EndOffsetsResult, Result
from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, EndOffsets, TxnOffsetCommit
from headrace.groups.model import GroupSettings, OffsetAndMetadata, TopicPartition
from headrace.groups.pending_offsets import OpenTransaction
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable

COMMIT = TxnOffsetCommit(
    token=None,
    transactional_id="tx",
    producer_id=7,
    producer_epoch=0,
    generation=-1,
    member_id="",
    instance_id=None,
    positions={PARTITION: OffsetAndMetadata(offset=5)},
)
OPEN = OpenTransaction("tx", 7, 0, 3)


def fresh() -> TxnOffsetCommit:
    return msgspec.structs.replace(COMMIT, token=object())


def end(*, committed: bool, number: int = 3) -> EndOffsets:
    return EndOffsets(token=object(), producer_id=7, producer_epoch=0, commit=committed, number=number)


async def third() -> int:
    return 3


class Transactions:
    """A coordinator of transactions."""

    def __init__(self, *answers: bool | StorageUnavailable) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, OpenTransaction]] = []

    async def may_end(self, group: str, transaction: OpenTransaction) -> bool:
        self.asked.append((group, transaction))
        answer = self.answers.pop(0)
        if isinstance(answer, StorageUnavailable):
            raise answer
        return answer


async def turns(clock: ManualClock, count: int = 5, step_ms: int = 250) -> None:
    for _ in range(count):
        for _ in range(5):
            await asyncio.sleep(0)
        clock.advance(step_ms)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_offsets_are_stored_before_the_response_and_visible_after_the_end(
    table: GroupCoordinator, storage: MemoryStorage
) -> None:
    assert await table.commit_in_transaction("g", fresh(), third) == CommitResult(partitions={PARTITION: None})
    [pending] = storage.groups.stored["g"].stored.pending.values()
    assert (pending.position.offset, pending.number, pending.transactional_id) == (5, 3, "tx")
    assert set(table.unstable("g")) == {PARTITION}
    assert table.positions("g") == {}
    await table.mirror.settle()
    assert storage.logs.mirrored == {}

    assert await table.request("g", end(committed=True)) == EndOffsetsResult()
    assert table.positions("g")[PARTITION].offset == 5
    assert set(table.unstable("g")) == set()
    await table.mirror.settle()
    assert storage.logs.mirrored == {("headrace:t:0", "g"): 5}


async def test_partitions_stay_unstable_until_the_end_is_durable(
    table: GroupCoordinator, storage: MemoryStorage
) -> None:
    await table.commit_in_transaction("g", fresh(), third)
    storage.groups.answers = asyncio.Event()
    ending = asyncio.ensure_future(table.request("g", end(committed=True)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (set(table.unstable("g")), dict(table.positions("g"))) == ({PARTITION}, {})
    storage.groups.answers.set()
    await ending
    assert (set(table.unstable("g")), set(table.positions("g"))) == (set(), {PARTITION})


async def test_an_end_during_the_verification_makes_the_client_try_again(table: GroupCoordinator) -> None:
    """The transaction was verified before it ended: its offsets would stay pending."""
    await table.request("g", commit(1))

    async def verify() -> int:
        await table.request("g", end(committed=False))
        return 3

    result = await table.commit_in_transaction("g", fresh(), verify)
    assert result == CommitResult(
        error=GroupError.COORDINATOR_NOT_AVAILABLE, partitions={PARTITION: GroupError.COORDINATOR_NOT_AVAILABLE}
    )
    assert set(table.unstable("g")) == set()
    assert await table.commit_in_transaction("g", fresh(), third) == CommitResult(partitions={PARTITION: None})


async def test_a_rejected_verification_leaves_no_group(table: GroupCoordinator) -> None:
    async def verify() -> int:
        assert table.exists("g")
        raise ConnectionError("rejected")

    with pytest.raises(ConnectionError, match="rejected"):
        await table.commit_in_transaction("g", fresh(), verify)
    assert not table.exists("g")


async def test_other_requests_do_not_end_a_new_group_during_the_verification(table: GroupCoordinator) -> None:
    async def verify() -> int:
        other = msgspec.structs.replace(end(committed=True), producer_id=8)
        assert await table.request("g", other) == EndOffsetsResult()
        assert table.exists("g")
        return 3

    assert await table.commit_in_transaction("g", fresh(), verify) == CommitResult(partitions={PARTITION: None})
    assert set(table.unstable("g")) == {PARTITION}


async def test_a_request_that_is_given_up_stores_nothing(table: GroupCoordinator) -> None:
    result = await table.commit_in_transaction("g", fresh(), third, lambda: True)
    assert isinstance(result, CommitResult)
    assert result.error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert not table.exists("g")


async def test_names_and_the_number_of_groups_are_limited(
    storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition
) -> None:
    table = GroupCoordinator(storage.groups, clock, GroupSettings(max_groups=1), lambda _: partition)
    await table.request("g", commit(1))
    for name, error in (
        ("", GroupError.INVALID_GROUP_ID),
        ("n" * 1_025, GroupError.INVALID_GROUP_ID),
        ("h", GroupError.POLICY_VIOLATION),
    ):
        result = await table.commit_in_transaction(name, fresh(), third)
        assert isinstance(result, CommitResult)
        assert result.error is error
        # Its end is no error: the coordinator of the transaction would repeat it for ever.
        assert await table.request(name, end(committed=True)) == EndOffsetsResult()
    assert table.names() == ["g"]


async def test_a_deleted_topic_is_stable_at_once(table: GroupCoordinator, storage: MemoryStorage) -> None:
    await table.commit_in_transaction("g", fresh(), third)
    runner = table.runner("g")
    assert runner is not None
    storage.groups.answers = asyncio.Event()
    runner.drop(DropTopic("t"))
    assert set(table.unstable("g")) == set()
    storage.groups.answers.set()
    while storage.groups.stored["g"].stored.pending:
        await asyncio.sleep(0)


async def reloaded(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock, transactions: Transactions | None
) -> GroupCoordinator:
    await table.request("g", commit(1))
    result: Result = await table.commit_in_transaction("g", fresh(), third)
    assert result == CommitResult(partitions={PARTITION: None})
    await table.stop()
    again = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: None, transactions=transactions)
    await again.load()
    return again


async def test_a_loaded_group_keeps_offsets_of_a_transaction_that_may_end(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    transactions = Transactions(True)
    again = await reloaded(table, storage, clock, transactions)
    await turns(clock)
    assert transactions.asked == [("g", OPEN)]
    assert set(again.unstable("g")) == {PARTITION}
    await again.request("g", end(committed=True))
    assert again.positions("g")[PARTITION].offset == 5


async def test_a_loaded_group_drops_offsets_of_a_lost_transaction(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    again = await reloaded(table, storage, clock, Transactions(StorageUnavailable("loading"), False))
    await turns(clock, 1, 1)
    assert set(again.unstable("g")) == {PARTITION}
    await turns(clock)
    assert set(again.unstable("g")) == set()
    assert again.positions("g")[PARTITION].offset == 1
    assert storage.groups.stored["g"].stored.pending == {}


async def test_a_drop_that_storage_refuses_is_repeated(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    again = await reloaded(table, storage, clock, Transactions(False))
    storage.unavailable = True
    await turns(clock)
    assert set(again.unstable("g")) == {PARTITION}
    storage.unavailable = False
    await turns(clock, 10, 1_000)
    assert set(again.unstable("g")) == set()


async def test_without_a_coordinator_of_transactions_nothing_is_dropped(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    again = await reloaded(table, storage, clock, None)
    await turns(clock)
    assert set(again.unstable("g")) == {PARTITION}


async def test_a_stop_ends_the_checks(table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock) -> None:
    transactions = Transactions(*[StorageUnavailable("loading")] * 100)
    again = await reloaded(table, storage, clock, transactions)
    await turns(clock, 2)
    await again.stop()
    asked = len(transactions.asked)
    await turns(clock, 5, 5_000)
    assert len(transactions.asked) == asked > 0


async def test_a_group_that_moved_is_no_longer_checked(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    transactions = Transactions(*[StorageUnavailable("loading")] * 100)
    again = await reloaded(table, storage, clock, transactions)
    await turns(clock, 1)
    runner = again.runner("g")
    assert runner is not None
    runner.hand_over()
    await turns(clock, 3, 5_000)
    asked = len(transactions.asked)
    await turns(clock, 3, 5_000)
    assert len(transactions.asked) == asked


async def test_partitions_of_unknown_topics_have_an_error(table: GroupCoordinator) -> None:
    other = TopicPartition("t", 1)
    event = msgspec.structs.replace(fresh(), positions={other: OffsetAndMetadata(offset=1)})
    assert await table.commit_in_transaction("g", event, third) == CommitResult(partitions={other: None})
    assert set(table.unstable("g")) == {other}
