"""The leader of a topic's logs while the topic is created, deleted or moved to another virtual cluster."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from tests.broker.one_broker import ALL, STREAM, TOPIC, WITHOUT_2, OneBroker
from tests.harness.memory import MemoryStorage
from tests.harness.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.brokers import leadership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.services import Services
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import ClusterListener, VirtualClusters
from headrace.membership.view import Leader
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import OpenedLog, Topic

OTHER_TOPIC = Topic(name="t2", id=UUID(int=2), streams=(STREAM + "@2",), config={}, created_ms=0)


async def leading_in_clusters(broker: OneBroker) -> tuple[VirtualClusters, Leader]:
    """Virtual clusters over the same storage, whose log this broker leads, and the announcements that it made."""
    await broker.storage.topics.create(TOPIC)
    broker.go_by(2, WITHOUT_2)
    storage: Any = broker.storage
    settings, clock = BrokerSettings.of({}), ManualClock()
    parts = Services(storage.documents, settings, clock, ownership=broker.ownership, leaders=broker.leaders)
    clusters = VirtualClusters(storage, settings, clock, cluster_id="c", stream_of=lambda *_: STREAM, parts=parts)
    await clusters.start()
    await broker.has_told()
    return clusters, broker.told.pop(STREAM)


async def test_all_clusters_follow_leaders_report_lost_records_and_forget_deleted_topics() -> None:
    broker = OneBroker(1)
    clusters, first = await leading_in_clusters(broker)
    clusters.republish({})
    await broker.has_told()
    assert broker.told.pop(STREAM) == first
    clusters.learn_leaders({STREAM: first})
    clusters.learn_leaders({STREAM: Leader(first.epoch + 1, 3)})
    await broker.has_told()
    assert broker.told[STREAM] > first
    await clusters.default.topics.delete("t")
    assert broker.leaders.known == {}
    await clusters.stop()


async def test_leaders_are_announced_again_after_a_move_to_another_cluster() -> None:
    """Other brokers may take it for a new one, and forget the leaders of its logs, which stay open here."""
    broker = OneBroker(1)
    clusters, first = await leading_in_clusters(broker)
    storage: Any = broker.storage
    storage.in_cluster = lambda _: MemoryStorage()
    storage.move_topic = lambda *_: asyncio.sleep(0)
    await clusters.create("blue", {})
    await clusters.move("t", "default", "blue")
    await broker.has_told()
    assert broker.told == {STREAM: first}
    await clusters.stop()


async def test_a_topic_that_is_deleted_as_soon_as_it_has_moved_has_moved() -> None:
    broker = OneBroker(1)
    clusters, _ = await leading_in_clusters(broker)
    storage: Any = broker.storage
    blue = MemoryStorage()
    storage.in_cluster = lambda _: blue
    storage.move_topic = lambda *_: asyncio.sleep(0)
    target = await clusters.create("blue", {})
    blue.topics.stored["t"] = TOPIC
    deleting: list[asyncio.Task[None]] = []

    class Deleting(ClusterListener):
        def topic_added(self, broker: Broker, live: LiveTopic) -> None:
            deleting.append(asyncio.create_task(target.topics.delete("t")))

    clusters.subscribe(Deleting())
    await clusters.move("t", "default", "blue")
    await asyncio.gather(*deleting)
    assert not target.topics.has("t")
    await clusters.stop()


async def _taken_over_when_it_is_gone(broker: OneBroker, clusters: VirtualClusters) -> LeaderPartition:
    """The log is another broker's for a moment, and its topic leaves the cluster before this one opens it again."""
    log = clusters.default.topics.get("t").partitions[0].log
    assert log is not None
    broker.adopt(3, ALL)
    clusters.view_changed()
    assert log.leader == 2
    del broker.storage.topics.stored["t"]
    broker.adopt(4, WITHOUT_2)
    clusters.view_changed()
    return log


async def test_a_log_opened_for_a_topic_that_is_deleted_goes_where_one_of_its_name_has_moved_once() -> None:
    """No later step would delete the keys that the recovery has created."""
    broker = OneBroker(1)
    broker.storage.documents.stored["moved-topics", "default/t"] = b""
    clusters, _ = await leading_in_clusters(broker)
    del broker.storage.logs.logs[STREAM]
    log = await _taken_over_when_it_is_gone(broker, clusters)
    await until(lambda: log.deleted)
    await until(lambda: STREAM not in broker.storage.logs.logs)
    await clusters.stop()


async def test_a_log_stays_whose_topic_is_in_another_cluster_by_now() -> None:
    """Also if no record of the move is left."""
    broker = OneBroker(1)
    clusters, _ = await leading_in_clusters(broker)
    storage: Any = broker.storage
    blue = MemoryStorage()
    storage.in_cluster = lambda _: blue
    await clusters.create("blue", {})
    blue.topics.stored["t"] = TOPIC
    log = await _taken_over_when_it_is_gone(broker, clusters)
    await broker.has_told()
    for _ in range(50):
        await asyncio.sleep(0)
    assert log.is_leader
    assert not log.deleted
    assert STREAM in broker.storage.logs.logs
    await clusters.stop()


async def test_whether_a_topic_was_deleted_is_asked_again_where_redis_did_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leadership, "_AGAIN_S", 0)
    broker = OneBroker(1)
    clusters, _ = await leading_in_clusters(broker)
    find, asked = broker.storage.topics.find, 0

    async def away(name: str) -> Topic | None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StorageUnavailable("Redis does not answer")
        return await find(name)

    monkeypatch.setattr(broker.storage.topics, "find", away)
    log = await _taken_over_when_it_is_gone(broker, clusters)
    await until(lambda: log.deleted)
    await until(lambda: STREAM not in broker.storage.logs.logs)
    await clusters.stop()


async def test_nothing_is_kept_of_who_has_opened_a_log_that_no_topic_has() -> None:
    """The announcement follows the deletion of its topic, or precedes the announcement of its creation."""
    broker = OneBroker(1)
    clusters, first = await leading_in_clusters(broker)
    clusters.learn_leaders({STREAM: first, "gone": Leader(7, 2)})
    assert broker.leaders.known == {STREAM: first}
    topics = clusters.default.topics
    live = topics.get("t")
    live.topic = OTHER_TOPIC
    await topics.storage.topics.create(OTHER_TOPIC)
    topics.put(live, await topics.manager(live.config).open(OTHER_TOPIC, live.config, 0))
    assert broker.leaders.known == {}
    await clusters.stop()


async def test_a_topic_goes_by_the_view_that_came_while_its_logs_were_being_opened() -> None:
    broker = OneBroker(1)
    clusters, _ = await leading_in_clusters(broker)
    topics = clusters.default.topics
    await topics.delete("t")
    opens, opening, may_open = broker.storage.logs.open, asyncio.Event(), asyncio.Event()

    async def open_slowly(*args: Any, **options: Any) -> OpenedLog:
        opening.set()
        await may_open.wait()
        return await opens(*args, **options)

    broker.storage.logs.open = open_slowly  # type: ignore[method-assign]
    creating = asyncio.create_task(topics.create("new", 1, {}))
    await opening.wait()
    broker.go_by(3, ALL)
    clusters.view_changed()
    may_open.set()
    (log,) = (await creating).partitions
    assert log.leader == 2
    await clusters.stop()
