"""Whom brokers name as a log's leader while it changes: one leader epoch is one broker's, on all of them."""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
import structlog
from tests.harness.memory import MemoryStorage
from tests.harness.waiting import until

from headrace.broker import leading
from headrace.broker.cache import CacheBudget
from headrace.broker.clusters import Clusters
from headrace.broker.leading import Leaders, Leading
from headrace.broker.live import LiveTopic
from headrace.broker.log import LogPartition
from headrace.broker.ownership import Ownership
from headrace.broker.parts import Parts
from headrace.broker.settings import BrokerSettings
from headrace.broker.snapshots import Snapshots
from headrace.membership.leader import Leader
from headrace.membership.rendezvous import Rendezvous
from headrace.membership.view import Member, View
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults, resolve
from headrace.topics.errors import Fenced, InvalidConfig, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import OpenedLog, Topic

ALL, WITHOUT_2 = (1, 2, 3), (1, 3)
STREAM = next(
    name
    for name in (f"headrace:t:{number}" for number in range(1_000))
    if (Rendezvous(ALL).choose(name), Rendezvous(WITHOUT_2).choose(name)) == (2, 1)
)
"""Led by 2, and without it by 1."""
TOPIC = Topic(name="t", id=UUID(int=1), streams=(STREAM,), config={}, created_ms=0)
TOPIC2 = Topic(name="t2", id=UUID(int=2), streams=(STREAM + "@2",), config={}, created_ms=0)


class OneBroker:
    """What one broker has of a log, and what it tells the others."""

    def __init__(self, node_id: int) -> None:
        self.told: dict[str, Leader] = {}
        self.ownership = Ownership(node_id)
        self.leaders = Leaders(node_id, self._publish)
        self.storage = MemoryStorage()
        self.leading = Leading(self.ownership, self.leaders, self.storage.topics)
        self.snapshots = Snapshots()
        budget = CacheBudget(1 << 20)
        self.log = LogPartition("t", 0, STREAM, self.storage.logs, budget, ManualClock(), self.snapshots)

    async def _publish(self, leaders: Mapping[str, Leader]) -> None:
        self.told |= leaders

    async def has_told(self) -> None:
        for _ in range(1_000):
            if self.told:
                return
            await asyncio.sleep(0)
        raise AssertionError("it has told nothing")

    async def join(self, number: int, nodes: tuple[int, ...]) -> None:
        await self.storage.topics.create(TOPIC)
        self.adopt(number, nodes)
        await self.leading.open(TOPIC, [self.log])

    def go_by(self, number: int, nodes: tuple[int, ...]) -> None:
        self.adopt(number, nodes)
        self.leading.adopt(TOPIC, [self.log])

    def adopt(self, number: int, nodes: tuple[int, ...]) -> None:
        members = [Member(node_id=node, incarnation="a", process="", host="here", port=node) for node in nodes]
        self.ownership.adopt(View(number, tuple(members)), inside=self.ownership.node_id in nodes)

    def hear(self, leader: Leader) -> Leader:
        """Whom it names after it has been told of a leader."""
        news = self.leaders.news({STREAM: leader})
        if news:
            self.leaders.known |= news
            self.leading.hear(TOPIC, self.log)
        return self.log.named


async def test_the_next_leader_is_named_when_it_has_opened_the_log_and_all_are_told() -> None:
    next_one, other = OneBroker(1), OneBroker(3)
    for each in (next_one, other):
        await each.join(1, ALL)
        assert each.hear(Leader(10, 2)) == (10, 2)
    # 2 dies, and the other one does not know yet.
    next_one.go_by(2, WITHOUT_2)
    assert next_one.log.named == (10, -1)
    while not next_one.told:
        await asyncio.sleep(0)
    told = next_one.told[STREAM]
    assert next_one.log.is_led
    assert told == (next_one.log.leader_epoch, 1)
    assert (next_one.log.named, other.log.named) == ((10, -1), (10, 2))
    # What is told comes in any order beside the view.
    told = Leader(max(told.epoch, 11), 1)
    assert other.hear(told) == told
    other.go_by(2, WITHOUT_2)
    assert (next_one.hear(told), other.log.named) == (told, told)
    assert other.hear(Leader(10, 2)) == told


async def test_who_led_it_is_named_until_a_broker_that_came_back_has_opened_the_log() -> None:
    before, other = OneBroker(1), OneBroker(3)
    for each in (before, other):
        await each.join(2, WITHOUT_2)
        assert each.hear(Leader(11, 1)) == (11, 1)
    before.go_by(3, ALL)
    assert not before.log.is_led
    assert (before.log.named, other.log.named) == ((11, 1), (11, 1))
    assert before.hear(Leader(12, 2)) == (12, 2)
    # The other one has not seen it in a view: nobody could be told where it is.
    assert other.hear(Leader(12, 2)) == (12, -1)
    other.go_by(3, ALL)
    assert other.log.named == (12, 2)


async def test_of_a_new_log_nobody_has_told_and_the_view_says_who_leads_it() -> None:
    broker = OneBroker(3)
    await broker.join(1, ALL)
    assert broker.log.named == (-1, 2)


async def test_a_server_without_others_names_itself_as_soon_as_it_has_opened_the_log() -> None:
    storage = MemoryStorage()
    log = LogPartition("t", 0, STREAM, storage.logs, CacheBudget(1 << 20), ManualClock(), Snapshots())
    await Leading(Ownership(7), Leaders(), storage.topics).open(TOPIC, [log])
    assert log.named == (log.leader_epoch, 7)


async def test_a_log_that_another_broker_has_opened_since_is_opened_anew() -> None:
    """Of two views that came at once the broker saw the second one only: nobody would ever be named."""
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    while not broker.told:
        await asyncio.sleep(0)
    first = broker.told.pop(STREAM)
    broker.hear(first)
    # By view 3 the log was 2's, which has opened it and is gone.
    broker.hear(Leader(first.epoch + 1, 2))
    await broker.storage.logs.open(STREAM, lambda _: None, view=3)
    broker.go_by(4, WITHOUT_2)
    while not broker.told:
        await asyncio.sleep(0)
    again = broker.told[STREAM]
    assert again > (first.epoch + 1, 1)
    assert broker.hear(again) == again


async def test_after_a_missed_view_storage_is_asked_who_has_opened_a_log_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who led it by that view may have died before it told anybody."""
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    first = broker.told.pop(STREAM)
    await broker.snapshots.save()
    await broker.storage.logs.open(STREAM, lambda _: None, view=3)

    async def refuse(*_: object) -> None:
        raise Fenced("term 1 is over, now 2")

    monkeypatch.setattr(broker.storage.logs, "save_producers", refuse)
    broker.go_by(4, WITHOUT_2)
    assert broker.log.is_led
    broker.leading.view_changed(LiveTopic(TOPIC, resolve({}, TopicDefaults()), [broker.log]))
    await broker.snapshots.save()
    await broker.has_told()
    assert broker.told[STREAM].epoch > first.epoch + 1


async def test_a_log_that_another_broker_is_told_to_have_opened_is_opened_anew() -> None:
    """It is told after this broker went by the next view: what this one knows of the log may be old."""
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    first = broker.told.pop(STREAM)
    broker.hear(first)
    # By view 3, which this broker has not seen, the log was 2's.
    await broker.storage.logs.open(STREAM, lambda _: None, view=3)
    broker.go_by(4, WITHOUT_2)
    assert broker.log.leader_epoch == first.epoch
    broker.hear(Leader(first.epoch + 1, 2))
    await broker.has_told()
    again = broker.told[STREAM]
    assert again > (first.epoch + 1, 1)
    assert broker.hear(again) == again


async def test_whoever_has_opened_a_log_by_a_view_that_is_on_its_way_here_has_it() -> None:
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    first = broker.told[STREAM]
    broker.hear(first)
    broker.ownership.told = 3
    assert broker.hear(Leader(first.epoch + 1, 3)) == (first.epoch + 1, 3)
    for _ in range(50):
        await asyncio.sleep(0)
    assert broker.log.leader_epoch == first.epoch, "its opening would be refused"


@pytest.mark.parametrize(
    ("view", "why", "level"),
    [
        (2, Fenced("view 2 is over"), "info"),
        (2, UnknownTopic("deleted"), "info"),
        (None, UnknownTopic("deleted"), "info"),
        (None, Fenced("epoch 1 is over"), "error"),
    ],
)
async def test_a_partition_that_the_next_view_gives_to_another_broker_is_no_error(
    monkeypatch: pytest.MonkeyPatch, view: int | None, why: Exception, level: str
) -> None:
    """A broker that comes back is given its partitions; who had them hears of its view a moment later."""
    broker = OneBroker(1)
    if view is None:
        await broker.leading.open(TOPIC, [broker.log])
    else:
        await broker.join(view, WITHOUT_2)
        await broker.has_told()

    async def refuse(*_: object, **__: object) -> None:
        raise why

    monkeypatch.setattr(broker.storage.logs, "open", refuse)
    with structlog.testing.capture_logs() as logged:
        broker.log.lost(StorageUnavailable("the answer was lost"))
        for _ in range(10):
            await asyncio.sleep(0)
    lost = [line for line in logged if line["event"] == "partition lost"]
    assert [(line["log_level"], line["topic"], line["reason"]) for line in lost] == [(level, TOPIC.name, str(why))]


async def test_what_redis_has_lost_of_the_leaders_is_told_again() -> None:
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    told = dict(broker.told)
    broker.told.clear()
    broker.leading.tell_again([broker.log], told)
    await asyncio.sleep(0)
    assert broker.told == {}
    for lost in ({}, {STREAM: Leader(told[STREAM].epoch - 1, 2)}):
        broker.leading.tell_again([broker.log], lost)
        await broker.has_told()
        assert broker.told == told
        broker.told.clear()
    broker.go_by(3, ALL)
    broker.leading.tell_again([broker.log], {})
    await asyncio.sleep(0)
    assert broker.told == {}, "it is another broker's"


async def leading_in_clusters(broker: OneBroker) -> tuple[Clusters, Leader]:
    """Virtual clusters over the same storage, whose log this broker has opened, and what it has told of it."""
    await broker.storage.topics.create(TOPIC)
    broker.go_by(2, WITHOUT_2)
    storage: Any = broker.storage
    settings, clock = BrokerSettings.of({}), ManualClock()
    parts = Parts(storage.documents, settings, clock, ownership=broker.ownership, leaders=broker.leaders)
    clusters = Clusters(storage, settings, clock, cluster_id="c", stream_of=lambda *_: STREAM, parts=parts)
    await clusters.start()
    await broker.has_told()
    return clusters, broker.told.pop(STREAM)


async def test_all_clusters_hear_of_leaders_tell_what_was_lost_and_forget_deleted_topics() -> None:
    broker = OneBroker(1)
    clusters, first = await leading_in_clusters(broker)
    clusters.tell_again({})
    await broker.has_told()
    assert broker.told.pop(STREAM) == first
    clusters.learn_leaders({STREAM: first})
    clusters.learn_leaders({STREAM: Leader(first.epoch + 1, 3)})
    await broker.has_told()
    assert broker.told[STREAM] > first
    await clusters.default.topics.delete("t")
    assert broker.leaders.known == {}
    await clusters.stop()


async def test_who_leads_the_logs_of_a_topic_that_moved_to_another_cluster_is_told_again() -> None:
    """Other brokers take it for a new one, and forget who has opened its logs, which stay open here."""
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

    def delete(*_: object) -> None:
        deleting.append(asyncio.create_task(target.topics.delete("t")))

    target.topics.added.append(delete)
    await clusters.move("t", "default", "blue")
    await asyncio.gather(*deleting)
    assert not target.topics.has("t")
    await clusters.stop()


async def _taken_over_when_it_is_gone(broker: OneBroker, clusters: Clusters) -> LogPartition:
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
    """Nobody would ever delete what the opening has made."""
    broker = OneBroker(1)
    broker.storage.documents.stored["moved-topics", "default/t"] = b""
    clusters, _ = await leading_in_clusters(broker)
    del broker.storage.logs.logs[STREAM]
    log = await _taken_over_when_it_is_gone(broker, clusters)
    await until(lambda: log.deleted)
    await until(lambda: STREAM not in broker.storage.logs.logs)
    await clusters.stop()


async def test_a_log_stays_whose_topic_is_in_another_cluster_by_now() -> None:
    """Also where nothing tells of the move any more."""
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
    assert log.is_led
    assert not log.deleted
    assert STREAM in broker.storage.logs.logs
    await clusters.stop()


async def test_whether_a_topic_was_deleted_is_asked_again_where_redis_did_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leading, "_AGAIN_S", 0)
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


async def test_nothing_is_kept_of_who_led_a_deleted_log() -> None:
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    broker.hear(broker.told[STREAM])
    broker.leaders.opened(broker.log)
    broker.leaders.forget(TOPIC.streams)
    assert broker.leaders.known == {}
    broker.told.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert broker.told == {}


async def test_nothing_is_kept_of_who_has_opened_a_log_that_no_topic_has() -> None:
    """It was told behind the deletion of its topic; or of one that is not known yet, and that is told behind it."""
    broker = OneBroker(1)
    clusters, first = await leading_in_clusters(broker)
    clusters.learn_leaders({STREAM: first, "gone": Leader(7, 2)})
    assert broker.leaders.known == {STREAM: first}
    topics = clusters.default.topics
    live = topics.get("t")
    live.topic = TOPIC2
    await topics.storage.topics.create(TOPIC2)
    partitions, natives = await topics.open_partitions(TOPIC2, live.config, 0)
    topics.put(live, partitions, natives)
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


async def test_an_opening_by_a_view_that_is_over_is_not_taken() -> None:
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    while not broker.told:
        await asyncio.sleep(0)
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    opens = broker.storage.logs.open
    asked: list[int | None] = []

    async def open_slowly(*args: Any, view: int | None = None, **options: Any) -> OpenedLog:
        asked.append(view)
        opened = await opens(*args, view=view, **options)
        if view == 4:
            await answer
        return opened

    broker.storage.logs.open = open_slowly  # type: ignore[method-assign]
    broker.go_by(3, ALL)
    broker.go_by(4, WITHOUT_2)
    while 4 not in asked:
        await asyncio.sleep(0)
    broker.go_by(5, ALL)
    broker.go_by(6, WITHOUT_2)
    answer.set_result(None)
    while not broker.log.is_led:
        await asyncio.sleep(0)
    assert asked == [4, 6]


async def test_what_other_brokers_would_not_hear_of_is_refused_while_they_run() -> None:
    broker = OneBroker(1)
    await broker.join(1, ALL)
    with pytest.raises(InvalidConfig, match=r"topic 't' cannot be converted while other brokers run \(2, 3\): stop"):
        broker.leading.check_alone("topic 't' cannot be converted")
    broker.go_by(2, (1,))
    broker.leading.check_alone("topic 't' cannot be converted")


async def test_what_is_to_be_known_of_a_log_is_asked_for_until_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "_AGAIN_S", 0)
    broker = OneBroker(2)
    answers: list[Exception | None] = [StorageUnavailable("away"), TopicError("NOPERM"), None]
    asked: list[list[LogPartition]] = []

    async def learn(logs: Mapping[LogPartition, Topic]) -> None:
        asked.append(list(logs))
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    broker.leading.before_opening = learn
    await broker.join(1, ALL)
    await broker.has_told()
    assert broker.log.is_led
    assert asked == [[broker.log]] * 3


async def test_what_is_known_of_a_log_that_is_open_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever deletes its records changes that meanwhile."""
    monkeypatch.setattr(leading, "_AGAIN_S", 0)
    broker = OneBroker(2)
    find, looks, asked = broker.storage.topics.find, 0, 0

    async def fail_once(name: str) -> Topic | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise StorageUnavailable("away")
        return await find(name)

    async def learn(_: Mapping[LogPartition, Topic]) -> None:
        nonlocal asked
        asked += 1

    monkeypatch.setattr(broker.storage.topics, "find", fail_once)
    broker.leading.before_opening = learn
    await broker.join(1, ALL)
    await until(lambda: looks == 2)
    assert (broker.log.is_open, asked) == (True, 1)
