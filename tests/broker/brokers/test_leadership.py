"""Whom brokers name as a log's leader while it changes: one leader epoch is one broker's, on all of them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import structlog
from tests.broker.one_broker import ALL, STREAM, TOPIC, WITHOUT_2, OneBroker
from tests.harness.memory import MemoryStorage
from tests.harness.waiting import until

from headrace.broker.brokers import leadership
from headrace.broker.brokers.leadership import LeaderRegistry, Leadership
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.membership.view import Leader
from headrace.testing.clock import ManualClock
from headrace.topics.errors import Fenced, InvalidConfig, StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.model import OpenedLog, Topic


async def test_the_next_leader_is_named_when_it_has_recovered_the_log_and_all_are_notified() -> None:
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
    assert next_one.log.is_leader
    assert told == (next_one.log.leader_epoch, 1)
    assert (next_one.log.named, other.log.named) == ((10, -1), (10, 2))
    # Announcements of leaders arrive in any order relative to the cluster membership.
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
    assert not before.log.is_leader
    assert (before.log.named, other.log.named) == ((11, 1), (11, 1))
    assert before.hear(Leader(12, 2)) == (12, 2)
    # The other broker has not seen it in a cluster membership, so it has no address to return.
    assert other.hear(Leader(12, 2)) == (12, -1)
    other.go_by(3, ALL)
    assert other.log.named == (12, 2)


async def test_the_membership_names_the_leader_of_an_unannounced_log() -> None:
    broker = OneBroker(3)
    await broker.join(1, ALL)
    assert broker.log.named == (-1, 2)


async def test_a_server_without_others_names_itself_as_soon_as_it_has_opened_the_log() -> None:
    storage = MemoryStorage()
    log = LeaderPartition("t", 0, STREAM, storage.logs, CacheBudget(1 << 20), ManualClock(), SnapshotSchedule())
    await Leadership(Ownership(7), LeaderRegistry(), storage.topics).open(TOPIC, [log])
    assert log.named == (log.leader_epoch, 7)


async def test_a_log_that_another_broker_has_led_is_recovered() -> None:
    """The broker saw only the second of two quick changes of membership: without recovery no leader would be named."""
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
    """The leader in that membership may have died before it announced itself."""
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
    assert broker.log.is_leader
    broker.leading.view_changed(TOPIC, [broker.log])
    await broker.snapshots.save()
    await broker.has_told()
    assert broker.told[STREAM].epoch > first.epoch + 1


async def test_a_log_that_another_broker_has_announced_is_recovered() -> None:
    """The announcement comes after this broker adopted the next membership: its knowledge of the log may be old."""
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


async def test_a_leader_by_a_membership_still_in_flight_is_accepted() -> None:
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
    """A broker that comes back is given its partitions; the previous leader gets the membership a moment later."""
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
        broker.log.on_lost(StorageUnavailable("the answer was lost"))
        for _ in range(10):
            await asyncio.sleep(0)
    lost = [line for line in logged if line["event"] == "partition lost"]
    assert [(line["log_level"], line["topic"], line["reason"]) for line in lost] == [(level, TOPIC.name, str(why))]


async def test_lost_leaders_are_announced_again() -> None:
    broker = OneBroker(1)
    await broker.join(2, WITHOUT_2)
    await broker.has_told()
    told = dict(broker.told)
    broker.told.clear()
    broker.leading.republish([broker.log], told)
    await asyncio.sleep(0)
    assert broker.told == {}
    for lost in ({}, {STREAM: Leader(told[STREAM].epoch - 1, 2)}):
        broker.leading.republish([broker.log], lost)
        await broker.has_told()
        assert broker.told == told
        broker.told.clear()
    broker.go_by(3, ALL)
    broker.leading.republish([broker.log], {})
    await asyncio.sleep(0)
    assert broker.told == {}, "it is another broker's"


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
    while not broker.log.is_leader:
        await asyncio.sleep(0)
    assert asked == [4, 6]


async def test_conversions_are_refused_while_other_brokers_run() -> None:
    broker = OneBroker(1)
    await broker.join(1, ALL)
    with pytest.raises(InvalidConfig, match=r"topic 't' cannot be converted while other brokers run \(2, 3\): stop"):
        broker.leading.check_alone("topic 't' cannot be converted")
    broker.go_by(2, (1,))
    broker.leading.check_alone("topic 't' cannot be converted")


async def test_unknown_leaders_are_requested_until_they_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_AGAIN_S", 0)
    answers: list[Exception | None] = [StorageUnavailable("away"), TopicError("NOPERM"), None]
    asked: list[list[LeaderPartition]] = []

    async def learn(logs: Mapping[LeaderPartition, Topic]) -> None:
        asked.append(list(logs))
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    broker = OneBroker(2, learn)
    await broker.join(1, ALL)
    await broker.has_told()
    assert broker.log.is_leader
    assert asked == [[broker.log]] * 3


async def test_what_is_known_of_a_log_that_is_open_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting records changes the log start offset while the log stays open."""
    monkeypatch.setattr(leadership, "_AGAIN_S", 0)
    looks = asked = 0

    async def fail_once(name: str) -> Topic | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise StorageUnavailable("away")
        return await find(name)

    async def learn(_: Mapping[LeaderPartition, Topic]) -> None:
        nonlocal asked
        asked += 1

    broker = OneBroker(2, learn)
    find = broker.storage.topics.find
    monkeypatch.setattr(broker.storage.topics, "find", fail_once)
    await broker.join(1, ALL)
    await until(lambda: looks == 2)
    assert (broker.log.is_open, asked) == (True, 1)
