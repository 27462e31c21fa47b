"""Share groups in the running server: heartbeats during writes, and topics that change."""

import asyncio
from uuid import UUID

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.coordinator.subscribed_topics import NoTopics
from headrace.broker.partition.leader import LeaderPartition
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupKind, GroupSettings, TopicFacts
from headrace.groups.sharing.events import ShareHeartbeat, ShareHeartbeatResult
from headrace.testing.clock import ManualClock

FLIGHTS = UUID(int=1)
SESSION_MS = 45_000


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition) -> GroupCoordinator:
    return GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition)


def beat(member_id: str, epoch: int) -> ShareHeartbeat:
    topics = ("flights",) if epoch == 0 else None
    facts = {"flights": TopicFacts(FLIGHTS, 2)} if epoch == 0 else {}
    return ShareHeartbeat(token=object(), member_id=member_id, member_epoch=epoch, topics=topics, facts=facts)


async def asked(table: GroupCoordinator, event: ShareHeartbeat) -> ShareHeartbeatResult:
    result = await table.request("g", event)
    assert isinstance(result, ShareHeartbeatResult)
    return result


async def test_a_member_is_stored_before_it_is_answered(table: GroupCoordinator, storage: MemoryStorage) -> None:
    answers = storage.groups.answers = asyncio.Event()
    joining = asyncio.ensure_future(asked(table, beat("A", 0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not joining.done()
    answers.set()
    assert (await joining).member_epoch == 1
    (stored,) = await storage.groups.load()
    assert sorted(each.field for each in stored.fields) == ["shared:flights", "sharer:A"]
    assert stored.header is not None
    assert stored.header.kind is GroupKind.SHARE


async def test_a_blocked_storage_does_not_expire_members(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock
) -> None:
    """A heartbeat that changes nothing is answered during a write."""
    await asked(table, beat("A", 0))
    await asked(table, beat("B", 0))
    await asked(table, beat("A", 1))
    answers = storage.groups.answers = asyncio.Event()
    leaving = asyncio.ensure_future(asked(table, beat("B", -1)))
    for _ in range(3):
        await asyncio.sleep(0)
        clock.advance(SESSION_MS // 2)
        # The end of B is not stored: the answer would promise what it changes.
        waiting = asyncio.ensure_future(asked(table, beat("A", 2)))
        await asyncio.sleep(0)
        assert not waiting.done()
    answers.set()
    await leaving
    assert (await waiting).error is None
    assert (await asked(table, beat("A", 3))).error is None


async def test_a_member_that_was_not_stored_joins_again(table: GroupCoordinator, storage: MemoryStorage) -> None:
    storage.unavailable = True
    assert (await asked(table, beat("A", 0))).error is GroupError.COORDINATOR_NOT_AVAILABLE
    storage.unavailable = False
    assert (await asked(table, beat("A", 1))).error is GroupError.GROUP_ID_NOT_FOUND
    assert (await asked(table, beat("A", 0))).member_epoch == 1


async def test_names_have_a_maximum(table: GroupCoordinator) -> None:
    result = await table.request("g" * 2_000, beat("A", 0))
    assert isinstance(result, ShareHeartbeatResult)
    assert result.error is GroupError.INVALID_GROUP_ID


@pytest.mark.parametrize("present", [None, UUID(int=2)])
async def test_states_of_a_topic_that_was_deleted_during_a_restart_go(
    table: GroupCoordinator,
    storage: MemoryStorage,
    clock: ManualClock,
    partition: LeaderPartition,
    present: UUID | None,
) -> None:
    """It may be another topic of the same name by now."""
    await asked(table, beat("A", 0))
    await asked(table, beat("A", -1))

    async def stored_id(_: str) -> UUID | None:
        return present

    known = Coordination(Ownership(0), "default", lambda _: present, stored_id)
    later = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition, known)
    await later.load()
    for _ in range(5):
        await asyncio.sleep(0)
    (stored,) = await storage.groups.load()
    assert (stored.fields, stored.header is None) == ((), False)
    missing = await known.gone(stored)
    assert missing == []


class Topics(NoTopics):
    """One topic, once it is created."""

    found: TopicFacts | None = None

    def facts(self, name: str) -> TopicFacts | None:
        return self.found if name == "flights" else None


async def test_a_topic_that_is_created_while_its_first_member_joins_is_assigned(
    storage: MemoryStorage, clock: ManualClock, partition: LeaderPartition
) -> None:
    topics = Topics()
    table = GroupCoordinator(storage.groups, clock, GroupSettings(), lambda _: partition, topics=topics)
    await asked(table, beat("A", 0))
    answers = storage.groups.answers = asyncio.Event()
    leaving = asyncio.ensure_future(asked(table, beat("A", -1)))
    await asyncio.sleep(0)
    unknown = ShareHeartbeat(token=object(), member_id="B", member_epoch=0, topics=("flights",))
    joining = asyncio.ensure_future(asked(table, unknown))
    await asyncio.sleep(0)
    topics.found = TopicFacts(FLIGHTS, 2)
    table.topic_changed("flights")
    for _ in range(10):
        await asyncio.sleep(0)
    answers.set()
    await leaving
    joined = await joining
    for _ in range(10):
        await asyncio.sleep(0)
    found = await asked(table, beat("B", joined.member_epoch))
    assert found.assignment == ((FLIGHTS, (0, 1)),)
