"""The table of topics: creation, deletion, and remains after a storage failure."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from tests.harness.memory import MemoryStorage, MemoryTopics

from headrace.broker.brokers.leadership import LeaderRegistry, Leadership
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.native.stream_manager import StreamManager
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.runtime.decompression import Decompression
from headrace.broker.topics.live import LiveTopic, OtherClusters, TopicListener
from headrace.broker.topics.log_manager import LogManager
from headrace.broker.topics.reconcile import refresh
from headrace.broker.topics.record_checker import RecordChecker
from headrace.broker.topics.table import TopicTable
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults
from headrace.topics.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicName,
    StorageUnavailable,
    TopicExists,
    UnknownTopic,
    UnknownTopicId,
)
from headrace.topics.model import OpenedLog, Topic

BUDGET = CacheBudget(1 << 20)


def stream_of(name: str, _: UUID, index: int) -> str:
    return f"headrace:{name}:{index}"


class Told(TopicListener):
    """Keeps what it hears of topics, by name."""

    def __init__(self) -> None:
        self.deletions: list[tuple[str, str]] = []
        self.names_left: list[str] = []

    def deleted(self, live: LiveTopic) -> None:
        self.deletions.append(("deleted", live.topic.name))

    def left(self, name: str) -> None:
        self.names_left.append(name)

    def removed(self, live: LiveTopic) -> None:
        self.deletions.append(("removed", live.topic.name))


def made(storage: MemoryStorage, clock: ManualClock, listener: TopicListener | None = None) -> TopicTable:
    leading = Leadership(Ownership(0), LeaderRegistry(), storage.topics)
    logs = LogManager(storage.logs, leading, clock, stream_of, BUDGET, SnapshotSchedule())
    streams = StreamManager(storage, leading, clock, stream_of)
    return TopicTable(
        storage,
        clock,
        TopicDefaults(),
        logs,
        streams,
        leading,
        checker=RecordChecker(Decompression()),
        listener=listener,
    )


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock, told: Told) -> TopicTable:
    return made(storage, clock, told)


async def test_a_created_topic_is_stored_and_found_by_name_and_id(table: TopicTable, storage: MemoryStorage) -> None:
    live = await table.create("t", 3, {"retention.ms": "1000"})

    assert storage.topics.stored["t"] == live.topic
    topic_id = live.topic.id
    assert table.get("t") is table.by_id(topic_id)
    assert {id(each) for each in (table.referred("t"), table.referred(topic_id), table.with_id(topic_id.bytes))} == {
        id(live)
    }
    assert table.find_referred("t") is table.find_referred(topic_id) is live
    assert [partition.stream for partition in live.partitions] == ["headrace:t:0", "headrace:t:1", "headrace:t:2"]
    assert live.config.retention_ms == 1000
    assert table.partition("t", 2).index == 2
    with pytest.raises(UnknownTopic, match="3 partitions, no partition 3"):
        table.partition("t", 3)


async def test_a_failed_creation_leaves_nothing(table: TopicTable, storage: MemoryStorage) -> None:
    await table.create("t", 1, {})
    with pytest.raises(TopicExists):
        await table.create("t", 1, {})
    with pytest.raises(InvalidTopicName):
        await table.create("a b", 1, {})
    with pytest.raises(InvalidPartitions):
        await table.create("u", 0, {})
    with pytest.raises(InvalidConfig):
        await table.create("u", 1, {"retention.ms": "soon"})

    assert list(storage.topics.stored) == table.names() == ["t"]


async def test_a_topic_created_again_has_another_id(table: TopicTable, told: Told) -> None:
    first = await table.create("t", 1, {})
    await table.delete("t")
    assert told.names_left == ["t"]
    with pytest.raises(UnknownTopic):
        table.get("t")
    second = await table.create("t", 1, {})

    assert first.topic.id != second.topic.id
    for find in (table.by_id, table.referred):
        with pytest.raises(UnknownTopicId):
            find(first.topic.id)
    assert table.with_id(first.topic.id.bytes) is table.find_referred(first.topic.id) is None
    assert table.find_referred("u") is None


async def test_a_deletion_that_storage_refuses_leaves_a_topic_that_works(
    table: TopicTable, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await table.create("t", 1, {})

    async def refuse(_: Topic) -> None:
        raise StorageUnavailable("no connection")

    monkeypatch.setattr(storage.topics, "delete", refuse)
    with pytest.raises(StorageUnavailable):
        await table.delete("t")

    assert table.get("t") is live
    live.partitions[0].check_readable(0)


async def test_a_changed_configuration_is_stored_and_in_force(table: TopicTable, storage: MemoryStorage) -> None:
    await table.create("t", 1, {})
    await table.configure("t", lambda config: {**config, "max.message.bytes": "100"})

    assert table.get("t").config.max_message_bytes == 100
    assert storage.topics.stored["t"].config == {"max.message.bytes": "100"}


async def test_stored_topics_are_opened_at_the_start(
    table: TopicTable, storage: MemoryStorage, clock: ManualClock
) -> None:
    await table.create("t", 2, {})
    await table.create("u", 1, {})
    again = made(storage, clock)
    seen: list[tuple[int, int]] = []
    await again.load(lambda opened, total: seen.append((opened, total)))

    assert again.names() == ["t", "u"]
    assert seen == [(2, 3), (3, 3)]


async def test_an_obsolete_stored_value_stays_without_harm(
    table: TopicTable, storage: MemoryStorage, clock: ManualClock
) -> None:
    long, longer = ",".join(["delete"] * 200), ",".join(["delete"] * 201)
    live = await table.create("t", 1, {})
    storage.topics.stored["t"] = msgspec.structs.replace(live.topic, config={"cleanup.policy": long})
    again = made(storage, clock)
    await again.load()

    await again.configure("t", lambda config: {**config, "retention.ms": "5"})
    assert storage.topics.stored["t"].config == {"cleanup.policy": long, "retention.ms": "5"}
    with pytest.raises(InvalidConfig, match="1024 characters"):
        await again.configure("t", lambda config: {**config, "cleanup.policy": longer})
    with pytest.raises(InvalidConfig, match="1024 characters"):
        await again.create("u", 1, {"cleanup.policy": long})


class SlowTopics(MemoryTopics):
    """Answers on request."""

    def __init__(self, shared: MemoryStorage) -> None:
        super().__init__(shared)
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def create(self, topic: Topic) -> None:
        await super().create(topic)
        await self._pause()

    async def delete(self, topic: Topic) -> Topic:
        stored = await super().delete(topic)
        await self._pause()
        return stored

    async def _pause(self) -> None:
        self.asked.set()
        await self.go_on.wait()


async def test_a_change_is_finished_when_the_one_who_asked_has_gone(clock: ManualClock) -> None:
    storage = MemoryStorage()
    topics = storage.topics = SlowTopics(storage)
    table = made(storage, clock)

    for change in (table.create_if_missing("t", 1), table.delete("t")):
        topics.asked.clear()
        topics.go_on.clear()
        asking = asyncio.ensure_future(change)
        await topics.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        topics.go_on.set()
        # The next change waits for its turn, so the one before has ended after it.
        await table.create("next", 1, {})
        await table.delete("next")

        assert table.names() == list(storage.topics.stored)


async def test_a_topic_stored_without_an_answer_is_found_by_the_next_who_asks(
    table: TopicTable, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **__: object) -> OpenedLog:
        raise StorageUnavailable("the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(storage.logs, "open", lost)
        with pytest.raises(StorageUnavailable):
            await table.create_if_missing("t", 2)
    assert table.names() == []

    found = await table.create_if_missing("t", 5)
    assert found.topic == storage.topics.stored["t"]
    assert len(found.partitions) == 2
    with pytest.raises(TopicExists):
        await table.create("t", 1, {})


@pytest.mark.parametrize("stored", [True, False])
async def test_whether_a_topic_is_made_is_asked_where_the_answer_is_lost(
    table: TopicTable, storage: MemoryStorage, stored: bool
) -> None:
    async def lost(topic: Topic) -> None:
        if stored:
            await MemoryTopics.create(storage.topics, topic)
        raise StorageUnavailable("the connection was lost")

    storage.topics.create = lost  # type: ignore[method-assign]
    if stored:
        live = await table.create("t", 2, {"retention.ms": "1000"})
        assert live.topic == storage.topics.stored["t"]
        assert (len(live.partitions), live.config.retention_ms) == (2, 1000)
    else:
        with pytest.raises(StorageUnavailable):
            await table.create("t", 2, {})
    assert table.names() == list(storage.topics.stored)


async def test_nothing_can_be_created_after_everything_was_deleted(
    table: TopicTable, storage: MemoryStorage, told: Told
) -> None:
    for name in ("a", "b"):
        await table.create(name, 1, {})
    await table.delete_all()
    assert (storage.topics.stored, table.names()) == ({}, [])
    assert [name for what, name in told.deletions if what == "removed"] == ["a", "b"]
    with pytest.raises(UnknownTopic, match="was deleted"):
        await table.create("a", 1, {})


async def test_only_who_deletes_a_topic_tidies_up_behind_it(
    table: TopicTable, storage: MemoryStorage, told: Told
) -> None:
    for name in ("a", "b"):
        await table.create(name, 1, {})
    await table.delete("a")
    # Another broker has deleted it, or moved it to another virtual cluster.
    del storage.topics.stored["b"]
    await refresh(table, "b")
    assert told.deletions == [("deleted", "a"), ("removed", "a"), ("removed", "b")]


async def test_topics_that_another_broker_has_moved_are_not_deleted(
    table: TopicTable, storage: MemoryStorage, told: Told
) -> None:
    for name in ("a", "b", "c"):
        await table.create(name, 1, {})
    # The moves have not been announced yet.
    del storage.topics.stored["a"], storage.topics.stored["b"]
    with pytest.raises(UnknownTopic):
        await table.delete("a")
    assert not table.has("a")
    await table.delete_all()
    assert table.names() == []
    assert told.deletions == [("removed", "a"), ("removed", "b"), ("deleted", "c"), ("removed", "c")]


async def test_nor_is_it_where_the_answer_to_its_deletion_is_lost(
    table: TopicTable, storage: MemoryStorage, told: Told
) -> None:
    """Its records belong to another virtual cluster by now: no client learns that they are gone."""
    moved = (await table.create("a", 1, {})).topic

    async def lost(topic: Topic) -> Topic:
        with pytest.raises(UnknownTopic):
            await MemoryTopics.delete(storage.topics, topic)
        raise StorageUnavailable("the connection was lost")

    class Moved(OtherClusters):
        async def has_moved(self, topic: str, stream: str) -> bool:
            return (topic, stream) == ("a", moved.streams[0])

    storage.topics.delete = lost  # type: ignore[method-assign]
    table.others = Moved()
    del storage.topics.stored["a"]
    with pytest.raises(UnknownTopic, match="was moved"):
        await table.delete("a")
    assert ([name for what, name in told.deletions if what == "deleted"], table.names()) == ([], [])


async def test_what_cannot_all_be_deleted_goes_on(table: TopicTable, storage: MemoryStorage) -> None:
    async def refuse(topic: Topic) -> Topic:
        raise StorageUnavailable("away")

    await table.create("a", 1, {})
    storage.topics.delete = refuse  # type: ignore[method-assign]
    with pytest.raises(StorageUnavailable):
        await table.delete_all()
    await table.create("b", 1, {})
    assert table.names() == ["a", "b"]
