"""Virtual clusters on a storage in memory, and on a Redis for what is stored."""

from collections.abc import AsyncIterator, Mapping
from uuid import UUID

import msgspec
import pytest
import redis.asyncio
from tests.broker.several_clusters import World, append, stored
from tests.harness.redis import RedisServer
from tests.harness.waiting import until

from headrace.broker import virtual_clusters
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.native.adoption import adopt
from headrace.broker.native.conversion import convert
from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import DEFAULT, UnknownCluster
from headrace.groups.model import OffsetAndMetadata, SaveOffsets, TopicPartition
from headrace.membership.view import Member, View
from headrace.storage.layout import registry
from headrace.storage.layout.keys import Keyspace
from headrace.storage.logs.redis_logs import RedisLogs
from headrace.topics.config_keys import InvalidSetting
from headrace.topics.errors import InvalidConfig, NotLeader, StorageUnavailable, TopicExists, UnknownTopic


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url, {"num.partitions": "2", "log.retention.minutes": "90"})
    await world.start()
    yield world
    await world.stop()


async def test_all_clusters_cache_within_the_budget_given(world: World) -> None:
    await world.clusters.create("pool", {})

    assert [broker.cache for _, broker in world.clusters] == [world.cache, world.cache]


async def test_clusters_and_their_settings_survive_a_restart(world: World) -> None:
    await world.clusters.create("blue", {"num.partitions": "7", "log.retention.hours": "48"})
    await world.clusters.create("red", {})
    await world.clusters.create(DEFAULT, {"auto.create.topics.enable": "false"})
    for clusters in (world.clusters, await world.restart()):
        assert [name for name, _ in clusters] == [DEFAULT, "blue", "red"]
        blue, red = clusters.get("blue"), clusters.get("red")
        assert (blue.settings.num_partitions, red.settings.num_partitions) == (7, 2)
        assert blue.settings.topic_defaults.values["retention.ms"] == "172800000"
        assert red.settings.topic_defaults.values["retention.ms"] == "5400000"
        assert (clusters.default.settings.auto_create_topics_enable, red.settings.auto_create_topics_enable) == (
            False,
            True,
        )
        assert clusters.settings_of("blue") == {"num.partitions": "7", "log.retention.hours": "48"}
        assert len({clusters.default.cluster_id, blue.cluster_id, red.cluster_id}) == 3
        assert blue.advertised is clusters.default.advertised
        assert blue.cache is clusters.default.cache


async def test_the_same_name_is_another_topic_elsewhere(world: World) -> None:
    clusters = world.clusters
    blue = await clusters.create("blue", {})
    for broker in (clusters.default, blue):
        await broker.topics.create("t", 1, {})
    await append(clusters.default, "t", b"1")
    await append(blue, "t", b"1")
    await append(blue, "t", b"2")
    clusters = await world.restart()
    assert [await stored(broker, "t") for _, broker in clusters] == [1, 2]
    assert clusters.default.topics.get("t").topic.streams == ("headrace:t:0",)
    assert clusters.get("blue").topics.get("t").topic.streams == ("headrace:blue:t:0",)


async def test_settings_of_a_cluster_change_the_topics_that_have_none_of_their_own(world: World) -> None:
    blue = await world.clusters.create("blue", {})
    await blue.topics.create("follows", 1, {})
    await blue.topics.create("own", 1, {"retention.ms": "1"})
    assert await world.clusters.create("blue", {"log.retention.hours": "1"}) is blue
    assert blue.topics.get("follows").config.retention_ms == 3_600_000
    assert blue.topics.get("own").config.retention_ms == 1


async def test_settings_and_names_that_cannot_be(world: World) -> None:
    with pytest.raises(InvalidSetting):
        await world.clusters.create("blue", {"num.partitions": "0"})
    with pytest.raises(ValueError, match="part of a key"):
        await world.clusters.create("a:b", {})
    with pytest.raises(ValueError, match="default"):
        await world.clusters.delete(DEFAULT)
    with pytest.raises(UnknownCluster):
        world.clusters.get("blue")
    assert [name for name, _ in await world.restart()] == [DEFAULT]


async def test_a_deleted_cluster_leaves_nothing(world: World, any_redis: RedisServer) -> None:
    async with redis.asyncio.from_url(any_redis.url) as link:
        before = set(await link.keys())
        blue = await world.clusters.create("blue", {})
        await blue.topics.create("t", 3, {})
        await append(blue, "t", b"1")
        await blue.storage.groups.save("g", [SaveOffsets({TopicPartition("t", 0): OffsetAndMetadata(offset=1)})])
        await world.clusters.delete("blue")
        await world.clusters.delete("blue")
        # The fence of a group stays for a day: nothing on its way brings the group back.
        assert set(await link.keys()) == {*before, b"headrace:group:{blue/g}"}
    assert world.told == [("added", "blue/t"), ("removed", "blue/t"), ("cluster removed", "blue")]
    assert [name for name, _ in await world.restart()] == [DEFAULT]


async def test_a_cluster_is_deleted_with_what_a_deletion_before_had_to_leave(
    world: World, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis fails right after the step that counts, records of a topic are left to the next one."""
    drop, fails = RedisLogs.drop, [StorageUnavailable("away")]

    async def drop_once_it_is_back(logs: RedisLogs, stream: str) -> None:
        if fails:
            raise fails.pop()
        await drop(logs, stream)

    async with redis.asyncio.from_url(any_redis.url) as link:
        before = set(await link.keys())
        blue = await world.clusters.create("blue", {})
        await blue.topics.create("t", 1, {})
        await append(blue, "t", b"1")
        monkeypatch.setattr(RedisLogs, "drop", drop_once_it_is_back)
        await world.clusters.delete("blue")
        assert not fails
        assert set(await link.keys()) == before


async def test_a_moved_topic_takes_its_records_along_and_leaves_positions_behind(world: World) -> None:
    default = world.clusters.default
    blue = await world.clusters.create("blue", {"log.retention.hours": "1"})
    live = await default.topics.create("t", 1, {})
    await append(default, "t", b"1")
    await default.storage.groups.save("g", [SaveOffsets({TopicPartition("t", 0): OffsetAndMetadata(offset=1)})])
    await default.groups.load()
    world.told.clear()

    await world.clusters.move("t", DEFAULT, "blue")
    await append(blue, "t", b"2")
    assert world.told == [("added", "blue/t")]
    assert blue.topics.get("t") is live
    assert blue.topics.by_id(live.topic.id) is live
    assert live.config.retention_ms == 3_600_000
    with pytest.raises(UnknownTopic):
        default.topics.get("t")
    with pytest.raises(UnknownTopic):
        default.topics.by_id(live.topic.id)
    clusters = await world.restart()
    assert clusters.default.topics.names() == []
    assert not clusters.default.groups.positions("g")
    assert await stored(clusters.get("blue"), "t") == 2


async def test_a_later_topic_of_that_name_has_keys_of_its_own(world: World) -> None:
    """Otherwise its creation would clear the records of the one that moved on."""
    await world.clusters.create("blue", {})
    await world.clusters.default.topics.create("t", 1, {})
    await append(world.clusters.default, "t", b"1")
    await world.clusters.move("t", DEFAULT, "blue")
    clusters = await world.restart()
    later = await clusters.default.topics.create("t", 1, {})
    assert later.topic.streams == (f"headrace:t:0@{later.topic.id.hex[:12]}",)
    await append(clusters.default, "t", b"2")
    await append(clusters.get("blue"), "t", b"3")
    with pytest.raises(TopicExists):
        await clusters.move("t", DEFAULT, "blue")
    await clusters.get("blue").topics.delete("t")
    await clusters.move("t", DEFAULT, "blue")
    await clusters.default.topics.create("t", 1, {})
    assert await stored(clusters.get("blue"), "t") == 1


@pytest.mark.parametrize("then", ["spoilt", "spoilt and followed", "deleted"])
async def test_a_later_topic_of_that_name_has_keys_of_its_own_also_where_the_move_cannot_be_read(
    world: World, any_redis: RedisServer, then: str
) -> None:
    await world.clusters.create("blue", {})
    await world.clusters.create("green", {})
    await world.clusters.default.topics.create("t", 1, {})
    await append(world.clusters.default, "t", b"1")
    await world.clusters.move("t", DEFAULT, "blue")
    await world.clusters.get("blue").topics.grow("t", 2)
    await world.clusters.move("t", "blue", "green")
    key = Keyspace().documents(virtual_clusters.MOVED_TOPICS)
    async with redis.asyncio.from_url(any_redis.url) as link:
        if then == "deleted":
            await link.delete(key)
        else:
            await link.set(key, "spoilt")
        if then == "spoilt and followed":
            await world.clusters.refresh_clusters()
        else:
            await world.restart()
        clusters = world.clusters
        for cluster in (DEFAULT, "blue"):
            later = await clusters.get(cluster).topics.create("t", 2, {})
            generation = later.topic.id.hex[:12]
            assert [stream.partition("@")[2] for stream in later.topic.streams] == [generation, generation]
    assert await stored(clusters.get("green"), "t") == 1
    assert len(clusters.get("green").topics.get("t").partitions) == 2


async def test_a_move_that_is_known_is_not_forgotten_with_its_document(world: World, any_redis: RedisServer) -> None:
    await world.clusters.create("blue", {})
    await world.clusters.default.topics.create("t", 1, {})
    await append(world.clusters.default, "t", b"1")
    await world.clusters.move("t", DEFAULT, "blue")
    key = Keyspace().documents(virtual_clusters.MOVED_TOPICS)
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.set(key, "spoilt")
        await world.clusters.refresh_clusters()
        await link.delete(key)
        await world.clusters.refresh_clusters()
    later = await world.clusters.default.topics.create("t", 1, {})
    assert later.topic.streams == (f"headrace:t:0@{later.topic.id.hex[:12]}",)
    # Others have the first keys again.
    other = await world.clusters.default.topics.create("u", 1, {})
    assert other.topic.streams == ("headrace:u:0",)
    assert await stored(world.clusters.get("blue"), "t") == 1


@pytest.mark.parametrize("note", ["own", "unknown", "same streams", "whole"])
async def test_a_topic_stays_while_streams_of_it_may_be_left_to_remove(
    world: World, any_redis: RedisServer, note: str
) -> None:
    """Elsewhere nothing protects what the note names: once it can be read its streams would go, with live records."""
    clusters = world.clusters
    await clusters.create("blue", {})
    live = await clusters.default.topics.create("t", 1, {})
    await clusters.default.topics.create("other", 1, {})
    await append(clusters.default, "t", b"1")
    key = Keyspace().deleted
    async with redis.asyncio.from_url(any_redis.url) as link:
        if note == "whole":
            await link.set(key, "spoilt")
        elif note == "same streams":
            # Of a topic whose name one has by now that cannot be read: it stays noted.
            await link.hset(Keyspace().topics, "bad", "{")
            earlier = msgspec.structs.replace(live.topic, name="bad", id=UUID(int=9))
            await link.hset(key, str(earlier.id), registry.encode(earlier))
        else:
            await link.hset(key, f"{live.topic.id}:log" if note == "own" else str(UUID(int=9)), "{")
        with pytest.raises(InvalidConfig, match=r"topic 't' stays as it is: .*still to be removed"):
            await clusters.move("t", DEFAULT, "blue")
        with pytest.raises(InvalidConfig, match=r"topic 't' stays as it is: .*still to be removed"):
            await clusters.default.convert("t", "native")
        if note == "same streams":
            # It is none of another topic's business.
            await clusters.move("other", DEFAULT, "blue")
        assert await stored(clusters.default, "t") == 1
        await link.delete(key)
        await clusters.move("t", DEFAULT, "blue")
    assert await stored(clusters.get("blue"), "t") == 1


async def test_moves_that_cannot_be(world: World) -> None:
    with pytest.raises(UnknownCluster):
        await world.clusters.move("t", DEFAULT, "blue")
    await world.clusters.create("blue", {})
    with pytest.raises(UnknownTopic):
        await world.clusters.move("t", DEFAULT, "blue")
    live = await world.clusters.default.topics.create("t", 1, {})
    await world.clusters.move("t", DEFAULT, DEFAULT)
    assert world.clusters.default.topics.get("t") is live
    assert isinstance(live.topic.id, UUID)


async def test_a_stream_is_a_partition_of_one_topic_whatever_its_cluster(world: World) -> None:
    blue = await world.clusters.create("blue", {})
    await blue.topics.create("t", 1, {"headrace.storage": "native"})
    await append(blue, "t", b"1")
    for broker in (blue, world.clusters.default):
        with pytest.raises(InvalidConfig, match="is a partition of topic 't' already"):
            await adopt(broker.topics, "thief", "headrace:blue:t:0", 0, {})
    assert world.clusters.default.topics.names() == []


class Nobody:
    """Positions of no group."""

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        return {}

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        pass


async def test_topics_of_one_name_go_to_the_other_storage_without_meeting(world: World) -> None:
    clusters = world.clusters
    await clusters.create("blue", {})
    for value in (b"first", b"second"):
        await clusters.default.topics.create("t", 1, {})
        await append(clusters.default, "t", value)
        await convert(clusters.default.topics, "t", "native", Nobody())
        if value == b"first":
            await clusters.move("t", DEFAULT, "blue")
    clusters = await world.restart()
    keys = [broker.topics.get("t").topic.streams[0] for _, broker in clusters]
    assert len(set(keys)) == 2
    async with redis.asyncio.from_url(world.url) as link:
        assert [await link.xlen(key) for key in keys] == [1, 1]


async def test_a_topic_that_moves_while_its_logs_are_opened_keeps_them(world: World) -> None:
    """A broker that opens a log looks whether its topic was deleted: in the cluster where it was."""
    one, two = (Member(node_id=node, incarnation="a", process="", host="here", port=9092) for node in (1, 2))
    ownership = Ownership(1)
    ownership.adopt(View(1, (two,)), inside=False)
    clusters = await world.restart(ownership)
    blue = await clusters.create("blue", {})
    await clusters.default.topics.create("t", 1, {})
    # The other broker goes, and the log is opened in the background.
    world.storage.fence.number = 3
    ownership.adopt(View(3, (one,), 1), inside=True)
    clusters.view_changed()
    await clusters.move("t", DEFAULT, "blue")
    log = blue.topics.partition("t", 0)
    await until(lambda: log.deleted or _is_led(log))
    assert await append(blue, "t", b"x") == 0
    # Whatever else the opening does comes before that.
    await blue.storage.topics.find("t")
    await blue.storage.topics.find("t")
    assert not log.deleted
    assert await stored(blue, "t") == 1
    assert await append(blue, "t", b"y") == 1


def _is_led(partition: Partition) -> bool:
    try:
        partition.check_led()
    except NotLeader:
        return False
    return True
