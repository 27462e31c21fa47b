"""Notices of changed topics: to the groups that read them, with the facts of that time, and after a takeover."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.coordinator.topic_watch import TopicWatch, watched_by
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.groups.consumers.events import TopicsChanged
from headrace.groups.model import StoredConsumer, StoredGrants, StoredGroup, StoredPartitions, TopicFacts
from headrace.topics.errors import StorageUnavailable, UnreadableTopic

ONE, TWO = TopicFacts(UUID(int=1), 4), TopicFacts(UUID(int=2), 8)


class Group:
    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.notices: list[TopicsChanged] = []

    def watches(self, topic: str) -> bool:
        return topic in self.topics

    def post(self, event: TopicsChanged) -> None:
        self.notices.append(event)


class Topics:
    """The topics that a server knows, and those in storage."""

    def __init__(self) -> None:
        self.known: dict[str, TopicFacts] = {}
        self.stored: dict[str, TopicFacts | Exception] = {}

    async def find(self, topic: str) -> TopicFacts | None:
        found = self.stored.get(topic)
        if isinstance(found, Exception):
            raise found
        return found


def watch_of(topics: Topics, *groups: Group) -> TopicWatch:
    return TopicWatch(topics.known.get, topics.find, lambda: groups, CooperativeScheduler())


def stored(**fields: Any) -> StoredGroup:
    member = StoredConsumer(
        member_id="m",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=1,
        epoch=1,
        previous_epoch=0,
        state="STABLE",
        **fields,
    )
    return StoredGroup(name="g", header=None, members=(), positions={}, fields=(member,))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_only_groups_that_read_a_topic_get_its_notice() -> None:
    topics, reads, other = Topics(), Group("a", "b"), Group("b")
    watch = watch_of(topics, reads, other)
    topics.known["a"] = ONE
    watch.changed("a")
    await settled()
    assert (reads.notices, other.notices) == ([TopicsChanged({"a": ONE})], [])


async def test_changes_at_the_same_time_are_one_notice_with_what_is_true_now() -> None:
    topics, group = Topics(), Group("a", "b", "c")
    watch = watch_of(topics, group)
    topics.known["a"] = ONE
    for topic in ("a", "b", "a", "unread"):
        watch.changed(topic)
    topics.known["a"] = TWO
    await settled()
    assert group.notices == [TopicsChanged({"a": TWO, "b": None})]


async def test_a_failure_does_not_end_the_notices() -> None:
    topics, group = Topics(), Group("a")
    groups = [group]
    watch = TopicWatch(topics.known.get, topics.find, lambda: [groups[0]], CooperativeScheduler())
    groups.clear()
    watch.changed("a")
    await settled()
    groups.append(group)
    watch.changed("a")
    await settled()
    assert group.notices == [TopicsChanged({"a": None})]
    await watch.stop()


async def test_after_a_takeover_an_unknown_topic_is_gone_only_if_storage_does_not_have_it() -> None:
    topics = Topics()
    topics.known["known"] = ONE
    topics.stored.update(elsewhere=TWO, unreadable=UnreadableTopic("x"))
    first = await watch_of(topics).load(stored(topics=("known", "elsewhere", "unreadable", "gone")))
    assert first() == TopicsChanged({"known": ONE, "elsewhere": TWO, "gone": None})
    # It became known while the group was loaded.
    topics.known["gone"] = TWO
    assert first() == TopicsChanged({"known": ONE, "elsewhere": TWO, "gone": TWO})


async def test_no_topic_counts_as_gone_while_storage_does_not_respond() -> None:
    topics = Topics()
    topics.stored["a"] = StorageUnavailable("no response")
    with pytest.raises(StorageUnavailable):
        await watch_of(topics).load(stored(topics=("a",)))


async def test_a_group_without_such_members_needs_no_notice() -> None:
    empty = StoredGroup(name="g", header=None, members=(), positions={})
    assert (await watch_of(Topics()).load(empty))() is None


def test_partitions_are_watched_without_a_subscription() -> None:
    held = StoredGrants("held", UUID(int=1), {1: (0,)})
    target = StoredPartitions("target", UUID(int=2), (1,))
    assert watched_by(stored(topics=("named",), held=(held,), target=(target,))) == ["named", "held", "target"]
