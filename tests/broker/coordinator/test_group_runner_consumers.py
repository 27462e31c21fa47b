"""Consumer groups in the running server: writes, heartbeats during writes, intervals and large targets."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.coordinator.subscribed_topics import NoTopics
from headrace.broker.partition.leader import LeaderPartition
from headrace.groups.configs import Configs, GroupConfig
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.consumers.target import LARGEST_AT_ONCE
from headrace.groups.effects import Result
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit, Request
from headrace.groups.model import (
    Assignment,
    GroupChange,
    GroupKind,
    GroupSettings,
    OffsetAndMetadata,
    TopicFacts,
    TopicPartition,
)
from headrace.testing.clock import ManualClock

FLIGHTS = UUID(int=1)


class Topics(NoTopics):
    """One topic."""

    partitions = 4

    def facts(self, name: str) -> TopicFacts | None:
        """Facts of `flights`."""
        return TopicFacts(FLIGHTS, self.partitions) if name == "flights" else None


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition, topics: Topics) -> GroupCoordinator:
    return GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition, topics=topics)


def beat(
    member_id: str,
    epoch: int,
    owned: Assignment | None = None,
    topics: tuple[str, ...] | None = None,
    partitions: int = 4,
) -> ConsumerHeartbeat:
    """A heartbeat. `partitions`: what the client's broker found."""
    return ConsumerHeartbeat(
        token=object(),
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=5_000 if epoch == 0 else -1,
        topics=("flights",) if epoch == 0 else topics,
        owned=() if epoch == 0 else owned,
        client_id="c",
        client_host="/h",
        facts={"flights": TopicFacts(FLIGHTS, partitions)} if epoch == 0 or topics else {},
    )


async def asked(table: GroupCoordinator, event: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
    """Its result."""
    result = await table.request("g", event)
    assert isinstance(result, ConsumerHeartbeatResult)
    return result


async def at_once(table: GroupCoordinator, event: ConsumerHeartbeat) -> Result | None:
    """Its result, if it waits for no storage."""
    asking = asyncio.ensure_future(table.request("g", event))
    for _ in range(3):
        await asyncio.sleep(0)
    return asking.result() if asking.done() else None


async def test_a_member_is_stored_before_it_is_answered(table: GroupCoordinator, storage: MemoryStorage) -> None:
    answers = storage.groups.answers = asyncio.Event()
    joining = asyncio.ensure_future(asked(table, beat("A", 0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not joining.done()
    answers.set()
    assert (await joining).member_epoch == 2
    (stored,) = await storage.groups.load()
    assert [each.field for each in stored.fields] == ["consumer:A"]


async def test_a_heartbeat_that_changes_nothing_is_answered_during_a_write(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    await asked(table, beat("A", 0))
    await asked(table, beat("A", 2, owned=((FLIGHTS, (0, 1, 2, 3)),)))
    answers = storage.groups.answers = asyncio.Event()
    timed_out = asyncio.ensure_future(asked(table, beat("B", 0)))
    await asyncio.sleep(0)
    # B's join is not stored. It may change what A has.
    assert await at_once(table, beat("A", 2)) is None
    assert not timed_out.done()
    answers.set()
    assert (await timed_out).waits


async def test_a_blocked_storage_does_not_expire_members(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    await asked(table, beat("A", 0))
    answers = storage.groups.answers = asyncio.Event()
    other = asyncio.ensure_future(table.request("g", beat("A", 2, topics=("flights", "trains"))))
    await asyncio.sleep(0)
    for _ in range(3):
        clock.advance(30_000)
        # What the write changes raises the epoch, so the result waits. Clients repeat all they know.
        assert await at_once(table, beat("A", 2, ((FLIGHTS, (0, 1, 2, 3)),), ("flights", "trains"))) is None
    answers.set()
    await other
    assert (await asked(table, beat("A", 3))).error is None


async def test_a_member_that_was_not_stored_joins_again(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    await asked(table, beat("A", 0))
    storage.unavailable = True
    refused = await asked(table, beat("B", 0))
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
    storage.unavailable = False
    assert (await asked(table, beat("A", 2))).error is None
    assert (await asked(table, beat("B", 0))).error is None


async def test_members_that_join_together_are_stored_together(
    table: GroupCoordinator, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[int] = []
    save = storage.groups.save

    async def counted(group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        saves.append(len(changes))
        await save(group, changes, view)

    monkeypatch.setattr(storage.groups, "save", counted)
    joined = await asyncio.gather(*(asked(table, beat(f"m{number}", 0)) for number in range(50)))
    assert [result.error for result in joined] == [None] * 50
    assert len(saves) <= 25, "one per member"
    (stored,) = await storage.groups.load()
    assert {each.field for each in stored.fields} == {f"consumer:m{number}" for number in range(50)}
    described = table.part("g")
    assert described is not None
    assert described.size == 50


async def test_a_commit_among_joins_has_its_own_write(table: GroupCoordinator, storage: MemoryStorage) -> None:
    await asked(table, beat("A", 0))
    place = TopicPartition("flights", 0)
    commit = Commit(
        token=object(),
        generation=2,
        member_id="A",
        instance_id=None,
        positions={place: OffsetAndMetadata(offset=5)},
    )
    requests: list[Request] = [beat("B", 0), beat("C", 0), commit, beat("D", 0)]
    results = await asyncio.gather(*(table.request("g", request) for request in requests))
    assert [getattr(result, "error", None) for result in results] == [None] * 4
    (stored,) = await storage.groups.load()
    assert {each.field[-1] for each in stored.fields} == set("ABCD")
    assert table.positions("g")[place].offset == 5


async def test_members_that_join_together_fail_together(table: GroupCoordinator, storage: MemoryStorage) -> None:
    await asked(table, beat("A", 0))
    storage.unavailable = True
    refused = await asyncio.gather(*(asked(table, beat(f"m{number}", 0)) for number in range(5)))
    assert {result.error for result in refused} == {GroupError.COORDINATOR_NOT_AVAILABLE}
    storage.unavailable = False
    assert (await asked(table, beat("A", 2))).error is None
    part = table.part("g")
    assert part is not None
    assert part.size == 1


async def test_a_topic_that_grew_while_a_join_waited(table: GroupCoordinator, topics: Topics) -> None:
    topics.partitions = 6
    await asked(table, beat("A", 0, partitions=4))
    for _ in range(3):
        await asyncio.sleep(0)
    result = await asked(table, beat("A", 2))
    assert result.assignment == ((FLIGHTS, (0, 1, 2, 3, 4, 5)),)


async def test_the_target_of_a_large_group_is_computed_in_a_thread(table: GroupCoordinator, topics: Topics) -> None:
    topics.partitions = LARGEST_AT_ONCE
    joined = await asked(table, beat("A", 0, partitions=LARGEST_AT_ONCE))
    assert (joined.assignment, joined.waits) == ((), True)
    async with asyncio.timeout(10):
        while not (result := await asked(table, beat("A", 1))).assignment:
            await asyncio.sleep(0.001)
    assert len(result.assignment[0][1]) == LARGEST_AT_ONCE
    await table.stop()


def test_intervals_follow_the_number_of_members(table: GroupCoordinator) -> None:
    found = []
    for members in (0, 1_000, 4_000, 20_000):
        table.memory.newer_members = members
        found.append(
            [table.heartbeat_interval_ms("g", GroupKind.CONSUMER, waits=waits) for waits in (True, False)],
        )
    assert found == [[100, 300], [500, 1_000], [2_000, 4_000], [5_000, 5_000]]


@pytest.mark.parametrize("kind", [GroupKind.CONSUMER, GroupKind.SHARE])
def test_an_interval_of_the_group_itself_is_exact(table: GroupCoordinator, kind: GroupKind) -> None:
    table.configs = Configs(
        GroupConfig(
            consumer_heartbeat_interval_ms=7_000,
            consumer_heartbeat_fixed=True,
            share_heartbeat_interval_ms=7_000,
            share_heartbeat_fixed=True,
        )
    )
    assert [table.heartbeat_interval_ms("g", kind, waits=waits) for waits in (True, False)] == [7_000, 7_000]
