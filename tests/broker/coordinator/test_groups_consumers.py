"""Consumer groups (KIP-848) in the running server: intervals, patterns, changed topics, lost writes and restarts."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from tests.harness.memory import MemoryStorage

from headrace.broker.brokers.ownership import Ownership
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.coordinator.pattern_subscriptions import Subscriber
from headrace.groups.configs import Configs, GroupConfig
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.errors import GroupError
from headrace.groups.model import GroupKind, GroupSettings, TopicFacts
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock

ORDERS = TopicFacts(UUID(int=1), 2)


class Topics:
    """The topics of a server."""

    def __init__(self) -> None:
        self.known = {"orders": ORDERS}
        self.stored: dict[str, TopicFacts] = {}

    def names(self) -> list[str]:
        return list(self.known)

    def facts(self, name: str) -> TopicFacts | None:
        return self.known.get(name)

    async def stored_facts(self, name: str) -> TopicFacts | None:
        return self.stored.get(name)

    def may_describe(self, subscriber: Subscriber) -> Callable[[str], bool] | None:
        del subscriber
        return None


@pytest.fixture
def topics() -> Topics:
    return Topics()


def made(
    storage: MemoryStorage,
    clock: ManualClock,
    topics: Topics,
    config: GroupConfig | None = None,
    ownership: Ownership | None = None,
) -> GroupCoordinator:
    def topic_id(name: str) -> UUID | None:
        found = topics.facts(name)
        return None if found is None else found.topic_id

    async def stored_id(name: str) -> UUID | None:
        found = await topics.stored_facts(name)
        return None if found is None else found.topic_id

    return GroupCoordinator(
        storage.groups,
        clock,
        GroupSettings(),
        lambda _: None,
        Coordination(ownership or Ownership(0), "default", topic_id, stored_id),
        topics=topics,
        configs=Configs(config),
    )


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock, topics: Topics) -> GroupCoordinator:
    return made(storage, clock, topics)


async def beat(
    table: GroupCoordinator, epoch: int, member: str = "m", group: str = "g", **fields: Any
) -> ConsumerHeartbeatResult:
    event = ConsumerHeartbeat(token=object(), member_id=member, member_epoch=epoch, **fields)
    result = await table.request(group, event)
    assert isinstance(result, ConsumerHeartbeatResult)
    return result


async def join(
    table: GroupCoordinator, *names: str, member: str = "m", group: str = "g", **fields: Any
) -> ConsumerHeartbeatResult:
    known = {name: facts for name in names if (facts := table.topics.facts(name)) is not None}
    return await beat(
        table, 0, member, group, rebalance_timeout_ms=60_000, topics=names, owned=(), facts=known, **fields
    )


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def assigned(result: ConsumerHeartbeatResult) -> dict[UUID, tuple[int, ...]] | None:
    return None if result.assignment is None else dict(result.assignment)


async def test_members_of_all_groups_together_send_a_thousand_heartbeats_per_second(table: GroupCoordinator) -> None:
    def interval(*, waits: bool = False) -> int:
        return table.heartbeat_interval_ms("g", GroupKind.CONSUMER, waits=waits)

    assert (interval(), interval(waits=True)) == (300, 100)
    for number in range(400):
        await join(table, "orders", member=f"m{number}", group=f"g{number % 3}")
    assert (interval(), interval(waits=True)) == (400, 200)
    table.memory.newer_members += 10_000
    assert interval() == 5_000
    table.memory.newer_members -= 10_000
    for number in range(400):
        await beat(table, -1, f"m{number}", f"g{number % 3}")
    assert (interval(), table.memory.newer_members) == (300, 0)


@pytest.mark.parametrize(("fixed", "expected"), [(True, (2_000, 2_000)), (False, (300, 100))])
async def test_a_group_may_have_its_own_interval(
    storage: MemoryStorage, clock: ManualClock, topics: Topics, fixed: bool, expected: tuple[int, int]
) -> None:
    config = GroupConfig(
        consumer_heartbeat_interval_ms=2_000,
        consumer_heartbeat_fixed=fixed,
        share_heartbeat_interval_ms=2_000,
        share_heartbeat_fixed=fixed,
    )
    table = made(storage, clock, topics, config)
    for kind in (GroupKind.CONSUMER, GroupKind.SHARE):
        assert tuple(table.heartbeat_interval_ms("g", kind, waits=waits) for waits in (False, True)) == expected


async def test_a_group_follows_its_topics(table: GroupCoordinator, topics: Topics) -> None:
    first = await join(table, "orders")
    assert assigned(first) == {ORDERS.topic_id: (0, 1)}
    topics.known["orders"] = TopicFacts(ORDERS.topic_id, 3)
    table.topic_changed("orders")
    await settled()
    grown = await beat(table, first.member_epoch)
    assert assigned(grown) == {ORDERS.topic_id: (0, 1, 2)}
    del topics.known["orders"]
    table.topic_changed("orders")
    await settled()
    assert assigned(await beat(table, grown.member_epoch)) == {}


async def test_topics_of_a_pattern_come_after_the_first_response(table: GroupCoordinator, topics: Topics) -> None:
    first = await join(table, pattern="or.*")
    assert assigned(first) == {}
    assert first.waits
    await settled()
    second = await beat(table, first.member_epoch, owned=())
    assert assigned(second) == {ORDERS.topic_id: (0, 1)}
    topics.known["orient"] = TopicFacts(UUID(int=2), 1)
    table.topic_changed("orient")
    await settled()
    third = await beat(table, second.member_epoch)
    assert assigned(third) == {ORDERS.topic_id: (0, 1), UUID(int=2): (0,)}


async def test_after_a_lost_write_the_group_knows_its_topics_again(
    table: GroupCoordinator, storage: MemoryStorage, topics: Topics
) -> None:
    first = await join(table, "orders", pattern="x.*")
    await settled()
    # A notice of this is lost with the events that wait for the write.
    topics.known["orders"] = TopicFacts(ORDERS.topic_id, 3)
    topics.known["x1"] = TopicFacts(UUID(int=2), 1)
    storage.unavailable = True
    refused = await beat(table, first.member_epoch, rebalance_timeout_ms=1)
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
    storage.unavailable = False
    await settled()
    epoch, found = first.member_epoch, None
    for _ in range(5):
        result = await beat(table, epoch, owned=((ORDERS.topic_id, (0, 1)),))
        epoch, found = result.member_epoch, assigned(result) or found
        await settled()
    assert found == {ORDERS.topic_id: (0, 1, 2), UUID(int=2): (0,)}


async def test_after_a_takeover_nothing_moves_while_the_topic_is_not_known_here(
    table: GroupCoordinator, storage: MemoryStorage, clock: ManualClock, topics: Topics
) -> None:
    first = await join(table, "orders", pattern="or.*")
    await settled()
    before = await beat(table, first.member_epoch, owned=((ORDERS.topic_id, (0, 1)),))
    topics.stored, topics.known = topics.known, {}
    ownership = Ownership(1)
    ownership.adopt(View(1, (Member(node_id=1, incarnation="a", process="", host="here", port=1),), 0), inside=True)
    later = made(storage, clock, topics, ownership=ownership)
    after = await beat(later, before.member_epoch)
    assert (after.error, after.member_epoch, after.assignment) == (None, before.member_epoch, None)
    topics.known = topics.stored
    later.topic_changed("orders")
    await settled()
    last = await beat(later, before.member_epoch)
    assert (last.error, last.assignment) == (None, None)
    for each in (table, later):
        await each.stop()


async def test_new_groups_have_a_maximum_of_bytes_and_number(table: GroupCoordinator) -> None:
    """Otherwise, any client could fill the server with groups."""
    table.settings = GroupSettings(max_groups=1)
    assert (await join(table, "orders", group="n" * 1_025)).error is GroupError.INVALID_GROUP_ID
    assert (await join(table, "orders")).error is None
    assert (await join(table, "orders", group="other")).error is GroupError.POLICY_VIOLATION
    assert (await beat(table, 1, group="other")).error is GroupError.GROUP_ID_NOT_FOUND
    assert (await join(table, "orders", member="second")).error is None
    assert table.names() == ["g"]
