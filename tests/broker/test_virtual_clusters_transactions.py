"""Open transactions of topics that move to another virtual cluster, and of clusters that are deleted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from tests.broker.several_clusters import World
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker.broker import Broker
from headrace.broker.coordinator.late_transactions import GRACE_MS
from headrace.broker.coordinator.participants import ClusterParticipants
from headrace.broker.other_clusters import ServerClusters
from headrace.broker.partition.source import COMMITTED, UNCOMMITTED
from headrace.broker.virtual_clusters import DEFAULT
from headrace.records.build import build
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Appended
from headrace.transactions.effects import EndResult, InitResult
from headrace.transactions.events import End, Init
from headrace.transactions.model import PartitionId, TransactionSettings


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url)
    await world.start()
    yield world
    await world.stop()


async def begin(broker: Broker, *topics: str) -> tuple[int, int]:
    """Begin a transaction with a batch in each topic."""
    result = await broker.transactions.request("id", Init(token=object(), timeout_ms=60_000))
    assert isinstance(result, InitResult)
    for topic in topics:
        await broker.topics.create(topic, 1, {})
        made = build(
            [(None, b"value", 1, ())],
            producer_id=result.producer_id,
            producer_epoch=result.epoch,
            base_sequence=0,
            transactional=True,
        )
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broker.topics.get(topic).append(0, made, 1, done.set_result, transactional_id="id", adds_partition=True)
        assert isinstance(await done, Appended)
        assert ends(broker, topic) == (1, 0)
    return result.producer_id, result.epoch


async def finish(broker: Broker, producer: tuple[int, int], *, commit: bool) -> None:
    event = End(token=object(), producer_id=producer[0], epoch=producer[1], commit=commit, version=2)
    result = await broker.transactions.request("id", event)
    assert isinstance(result, EndResult)
    assert result.error is None


def ends(broker: Broker, topic: str) -> tuple[int, int]:
    """High watermark and last stable offset."""
    log = broker.topics.partition(topic, 0).log
    assert log is not None
    return log.visible_end(UNCOMMITTED), log.visible_end(COMMITTED)


async def test_a_late_transaction_of_a_topic_that_has_moved_is_known_to_the_cluster_that_it_left(world: World) -> None:
    clusters = world.clusters
    blue = await clusters.create("blue", {})
    await clusters.create("green", {})
    await begin(blue, "t")
    await clusters.move("t", "blue", DEFAULT)
    live = clusters.default.topics.get("t")
    log = live.partitions[0].log
    assert log is not None
    assert log.transactions is not None
    (transaction,) = log.transactions.open.values()
    others = ServerClusters(clusters, DEFAULT)
    assert not await clusters.default.transactions.may_end_in(transaction, PartitionId(live.topic.id, 0))
    assert await others.may_end(transaction, live.topic.id, 0)
    await blue.transactions.coordinator.drop_all()
    assert not await others.may_end(transaction, live.topic.id, 0)
    world.clock.advance(TransactionSettings().max_timeout_ms + GRACE_MS)
    await until(lambda: ends(clusters.default, "t") == (1, 0))
    world.clock.advance(GRACE_MS)
    await until(lambda: ends(clusters.default, "t") == (2, 2))


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_transaction_ends_in_a_topic_that_has_moved(world: World, restarts: bool) -> None:
    clusters = world.clusters
    blue = await clusters.create("blue", {})
    producer = await begin(blue, "t")
    await clusters.move("t", "blue", DEFAULT)
    if restarts:
        clusters = await world.restart()
    assert ends(clusters.default, "t") == (1, 0)
    await finish(clusters.get("blue"), producer, commit=True)
    assert ends(clusters.default, "t") == (2, 2)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_deleted_cluster_leaves_no_open_transaction_in_a_moved_topic(world: World, restarts: bool) -> None:
    clusters = world.clusters
    blue = await clusters.create("blue", {})
    await begin(blue, "moved", "deleted")
    await clusters.move("moved", "blue", DEFAULT)
    if restarts:
        clusters = await world.restart()
    await clusters.delete("blue")
    assert ends(clusters.default, "moved") == (2, 2)
    log = clusters.default.topics.partition("moved", 0).log
    assert log is not None
    assert len(log.aborted(0, 2)) == 1
    clusters = await world.restart()
    assert ends(clusters.default, "moved") == (2, 2)
    assert not clusters.has("blue")


async def test_a_cluster_is_deleted_only_when_its_transactions_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = world.clusters
    blue = await clusters.create("blue", {})
    producer = await begin(blue, "moved")
    await clusters.move("moved", "blue", DEFAULT)

    async def never(*_: Any) -> tuple[()]:
        return ()

    monkeypatch.setattr(ClusterParticipants, "end", never)
    event = End(token=object(), producer_id=producer[0], epoch=producer[1], commit=True, version=2)
    committing = asyncio.ensure_future(blue.transactions.request("id", event))
    coordinator = blue.transactions.coordinator
    await until(lambda: (found := coordinator.describe("id")) is not None and found.state.prepared)
    with pytest.raises(StorageUnavailable, match="has not ended everywhere"):
        await clusters.delete("blue")
    assert clusters.has("blue")
    monkeypatch.undo()
    await clusters.delete("blue")
    assert ends(clusters.default, "moved") == (2, 2)
    log = clusters.default.topics.partition("moved", 0).log
    assert log is not None
    assert log.aborted(0, 2) == [], "it was committed"
    committing.cancel()
