"""The table of topics: creation, deletion, what a storage that fails leaves behind."""

import pytest

from headrace.broker.topics import TopicTable
from headrace.testing.clock import ManualClock
from headrace.topics.config import TopicDefaults
from headrace.topics.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicName,
    StorageUnavailable,
    TopicExists,
    UnknownTopic,
)
from headrace.topics.model import Topic

from .conftest import MemoryStorage


@pytest.fixture
def table(storage: MemoryStorage, clock: ManualClock) -> TopicTable:
    return TopicTable(storage, clock, TopicDefaults(), 1 << 20, lambda name, _, index: f"headrace:{name}:{index}")


async def test_a_created_topic_is_stored_and_found_by_name_and_id(table: TopicTable, storage: MemoryStorage) -> None:
    live = await table.create("t", 3, {"retention.ms": "1000"})

    assert storage.topics["t"] == live.topic
    assert table.get("t") is table.by_id(live.topic.id)
    assert [partition.stream for partition in live.partitions] == ["headrace:t:0", "headrace:t:1", "headrace:t:2"]
    assert live.config.retention_ms == 1000
    assert table.partition("t", 2).index == 2
    with pytest.raises(UnknownTopic, match="3 partitions, no partition 3"):
        table.partition("t", 3)


async def test_what_cannot_be_created_leaves_nothing(table: TopicTable, storage: MemoryStorage) -> None:
    await table.create("t", 1, {})
    with pytest.raises(TopicExists):
        await table.create("t", 1, {})
    with pytest.raises(InvalidTopicName):
        await table.create("a b", 1, {})
    with pytest.raises(InvalidPartitions):
        await table.create("u", 0, {})
    with pytest.raises(InvalidConfig):
        await table.create("u", 1, {"retention.ms": "soon"})

    assert list(storage.topics) == table.names() == ["t"]


async def test_a_topic_created_again_has_another_id(table: TopicTable) -> None:
    gone: list[str] = []
    table.deleted.append(gone.append)
    first = await table.create("t", 1, {})
    await table.delete("t")
    assert gone == ["t"]
    with pytest.raises(UnknownTopic):
        table.get("t")
    second = await table.create("t", 1, {})

    assert first.topic.id != second.topic.id
    with pytest.raises(UnknownTopic):
        table.by_id(first.topic.id)


async def test_a_deletion_that_storage_refuses_leaves_a_topic_that_works(
    table: TopicTable, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await table.create("t", 1, {})

    async def refuse(_: Topic) -> None:
        raise StorageUnavailable("no connection")

    monkeypatch.setattr(storage, "delete_topic", refuse)
    with pytest.raises(StorageUnavailable):
        await table.delete("t")

    assert table.get("t") is live
    live.partitions[0].check_readable(0)


async def test_a_changed_configuration_is_stored_and_in_force(table: TopicTable, storage: MemoryStorage) -> None:
    await table.create("t", 1, {})
    await table.configure("t", {"max.message.bytes": "100"})

    assert table.get("t").config.max_message_bytes == 100
    assert storage.topics["t"].config == {"max.message.bytes": "100"}


async def test_stored_topics_are_opened_at_the_start(
    table: TopicTable, storage: MemoryStorage, clock: ManualClock
) -> None:
    await table.create("t", 2, {})
    await table.create("u", 1, {})
    again = TopicTable(storage, clock, TopicDefaults(), 1 << 20, lambda *_: "unused")
    seen: list[tuple[int, int]] = []
    await again.load(lambda opened, total: seen.append((opened, total)))

    assert again.names() == ["t", "u"]
    assert seen == [(2, 3), (3, 3)]
