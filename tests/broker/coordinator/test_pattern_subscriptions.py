"""Regular expressions of consumers: whole names, described topics only, found again after every change."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from headrace.broker.coordinator.pattern_subscriptions import PatternSubscriptions, Subscriber
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.consumers.events import Resolved
from headrace.groups.model import TopicFacts
from headrace.security.access.principal import Principal
from headrace.testing.clock import ManualClock

REFRESH_MS = 600_000
ANA, BEN = (Subscriber(Principal(name), "10.0.0.1") for name in ("ana", "ben"))


class World:
    """Topics, rights and what groups are sent."""

    def __init__(self, *topics: str) -> None:
        self.topics = {name: TopicFacts(UUID(int=number), 1) for number, name in enumerate(topics, 1)}
        self.rights: dict[str, set[str]] | None = None
        self.events: list[tuple[str, Resolved]] = []
        self.clock = ManualClock()
        self.patterns = PatternSubscriptions(
            lambda: list(self.topics),
            self.topics.get,
            self.may_describe,
            lambda group, event: self.events.append((group, event)),
            self.clock,
            CooperativeScheduler(),
            REFRESH_MS,
        )

    def may_describe(self, subscriber: Subscriber) -> Callable[[str], bool] | None:
        if self.rights is None:
            return None
        return self.rights.get(subscriber.principal.name, set()).__contains__

    async def taken(self) -> list[tuple[str, dict[str, set[str]]]]:
        """The events since the last call: group, and topics by member."""
        for _ in range(30):
            await asyncio.sleep(0)
        events, self.events[:] = list(self.events), []
        for _, event in events:
            assert event.facts == {name: self.topics[name] for each in event.members.values() for name in each.topics}
        return [(group, {member: set(each.topics) for member, each in event.members.items()})
                for group, event in events]  # fmt: skip


async def test_a_pattern_matches_whole_names() -> None:
    world = World("orders", "orders-eu", "my-orders", "b")
    world.patterns.resolve("g", {"one": "orders.*", "two": "(^orders$)|(^b$)", "none": "x"})
    assert world.events == [], "it takes no part of the turn in which the member joins"
    assert await world.taken() == [("g", {"one": {"orders", "orders-eu"}, "two": {"orders", "b"}, "none": set()})]


async def test_a_created_topic_is_matched_at_once() -> None:
    world = World("a1")
    world.patterns.resolve("g", {"m": "a.*"})
    world.patterns.resolve("h", {"n": "b.*"})
    await world.taken()
    world.topics["a2"] = TopicFacts(UUID(int=9), 3)
    world.patterns.topics_changed(["a2"])
    assert await world.taken() == [("g", {"m": {"a1", "a2"}})]
    del world.topics["a1"]
    world.patterns.topics_changed(["a1", "a2"])
    assert await world.taken() == [("g", {"m": {"a2"}})]
    world.patterns.topics_changed(["a2", "unrelated"])
    assert await world.taken() == []


async def test_only_topics_that_the_member_may_describe() -> None:
    world = World("a1", "a2")
    world.rights = {"ana": {"a1"}, "ben": {"a1", "a2"}}
    world.patterns.note("g", "m", ANA)
    world.patterns.note("g", "n", BEN)
    world.patterns.resolve("g", {"m": "a.", "n": "a."})
    assert await world.taken() == [("g", {"m": {"a1"}, "n": {"a1", "a2"}})]
    world.patterns.note("g", "m", BEN)
    assert await world.taken() == [("g", {"m": {"a1", "a2"}})]


async def test_after_a_takeover_a_member_waits_for_its_principal() -> None:
    world = World("a1")
    world.rights = {"ana": {"a1"}}
    world.patterns.resolve("g", {"m": "a."})
    assert await world.taken() == [], "no topics would take away all partitions"
    world.patterns.note("g", "m", ANA)
    assert await world.taken() == [("g", {"m": {"a1"}})]


async def test_all_is_matched_again_after_the_refresh_interval() -> None:
    world = World("a1", "a2")
    world.rights = {"ana": {"a1"}}
    world.patterns.note("g", "m", ANA)
    world.patterns.resolve("g", {"m": "a."})
    await world.taken()
    world.rights["ana"].add("a2")
    world.clock.advance(REFRESH_MS - 1)
    assert await world.taken() == []
    world.clock.advance(1)
    assert await world.taken() == [("g", {"m": {"a1", "a2"}})]
    world.rights["ana"].remove("a1")
    world.clock.advance(REFRESH_MS)
    assert await world.taken() == [("g", {"m": {"a2"}})]
    world.patterns.forget("g")
    world.clock.advance(REFRESH_MS)
    assert await world.taken() == []


async def test_what_was_asked_again_is_answered_again() -> None:
    """A group that was restored has forgotten its topics."""
    world = World("a1")
    for pattern in ("a.", "a.", "b."):
        world.patterns.resolve("g", {"m": pattern})
        assert len(await world.taken()) == 1
    world.patterns.resolve("g", {"m": ""})
    world.patterns.topics_changed(["a1"])
    assert await world.taken() == []


async def test_a_member_that_was_not_accepted_is_forgotten() -> None:
    world = World("a1")
    world.rights = {"ana": {"a1"}}
    before = world.patterns.note("g", "m", ANA)
    world.patterns.settle("g", "m", before)
    world.patterns.resolve("g", {"m": "a."})
    assert await world.taken() == []
    world.patterns.settle("g", "m", ANA)
    assert len(await world.taken()) == 1


async def test_a_refused_heartbeat_of_another_principal_changes_no_topics() -> None:
    world = World("a1", "a2")
    world.rights = {"ana": {"a1"}, "ben": {"a1", "a2"}}
    world.patterns.resolve("g", {"m": "a."})
    world.patterns.settle("g", "m", ANA)
    assert await world.taken() == [("g", {"m": {"a1"}})]
    before = world.patterns.note("g", "m", BEN)
    world.patterns.settle("g", "m", before)
    assert await world.taken() == []
    world.patterns.resolve("g", {"m": ""})
    world.patterns.settle("g", "m", ANA)
    world.patterns.resolve("g", {"m": "a."})
    assert await world.taken() == [], "nothing is kept of a member without a pattern"


async def test_members_with_the_same_topics_share_them() -> None:
    world = World(*(f"a{number}" for number in range(50)))
    world.patterns.resolve("g", {"m": "a.*", "n": "a[0-9]+"})
    for _ in range(30):
        await asyncio.sleep(0)
    [(_, event)] = world.events
    assert event.members["m"].topics is event.members["n"].topics


async def test_a_stored_pattern_that_is_invalid_by_now_changes_nothing() -> None:
    world = World("a1")
    world.patterns.resolve("g", {"m": "(", "n": "a."})
    assert await world.taken() == [("g", {"n": {"a1"}})]
    await world.patterns.stop()
