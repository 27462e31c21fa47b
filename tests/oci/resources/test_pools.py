"""Stream pools and the virtual clusters that they are."""

from collections.abc import Mapping
from typing import Any

import pytest
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.broker import virtual_clusters
from headrace.membership.view import Lock
from headrace.oci import ocids
from headrace.oci.errors import OciError
from headrace.oci.resources.catalog import MOST_NAMED, TokenUse
from headrace.storage.layout.keys import Keyspace
from headrace.topics.errors import LockLost, StorageUnavailable
from headrace.topics.model import Topic

from .conftest import COMPARTMENT, World

DEFAULT = "ocid1.streampool.oc1.local.default"


def refused(caught: "pytest.ExceptionInfo[OciError]") -> tuple[int, str]:
    return caught.value.status, caught.value.code


async def test_there_is_a_default_pool(world: World) -> None:
    pool = world.catalog.pools.get(DEFAULT)
    assert (pool.name, pool.cluster, pool.compartment, pool.default) == ("DefaultPool", "default", "", True)
    assert world.catalog.pools.broker_of(pool) is world.default
    assert world.catalog.pools.cluster_of(DEFAULT) is world.default
    assert (await world.restart()).pools.all() == [pool]


async def test_a_pool_is_a_cluster_and_survives_a_restart(world: World) -> None:
    made = await world.pool("p", {"num.partitions": "3"}, kms_key="key", freeform_tags={"a": "b"})
    await world.clusters.get(made.cluster).topics.create("k", 1, {})
    catalog = await world.restart()
    assert catalog.pools.get(world.pool_id(made)) == made
    broker = catalog.pools.cluster_of(world.pool_id(made))
    assert broker is world.clusters.get(made.cluster)
    assert (broker.settings.num_partitions, broker.settings.auto_create_topics_enable) == (3, False)
    assert broker.topics.get("k").config.retention_ms == 24 * 3_600_000
    (record,) = catalog.streams.all()
    assert (record.name, record.pool, record.compartment) == ("k", made.id, COMPARTMENT)


async def test_names_are_taken_once_in_a_compartment(world: World) -> None:
    made = await world.pool("p")
    with pytest.raises(OciError, match="p exists already") as caught:
        await world.pool("p")
    assert refused(caught) == (409, "Conflict")
    await world.catalog.create_pool(None, "p", "elsewhere", {})
    other = await world.pool("q")
    with pytest.raises(OciError, match="p exists already"):
        await world.catalog.update_pool(world.pool_id(other), None, {}, {"name": "p"})
    await world.catalog.update_pool(world.pool_id(made), None, {}, {"name": "p", "freeform_tags": {"a": "b"}})
    await world.catalog.delete_pool(world.pool_id(made), None)
    await world.pool("p")
    assert len([name for name, _ in world.clusters]) == 4


async def test_an_update_changes_what_is_given(world: World) -> None:
    made = await world.pool("p", {"num.partitions": "3"}, kms_key="key")
    broker = world.clusters.get(made.cluster)
    await broker.topics.create("k", 1, {})
    changed, _ = await world.catalog.update_pool(
        world.pool_id(made), made.etag, {"log.retention.hours": "2", "auto.create.topics.enable": "true"}, {"name": "q"}
    )
    assert (changed.name, changed.kms_key, changed.version) == ("q", "key", 2)
    assert (broker.settings.num_partitions, broker.settings.auto_create_topics_enable) == (3, True)
    assert broker.topics.get("k").config.retention_ms == 2 * 3_600_000
    await world.restart()
    assert world.clusters.get(made.cluster).settings.auto_create_topics_enable
    with pytest.raises(OciError) as caught:
        await world.catalog.update_pool(world.pool_id(made), made.etag, {}, {})
    assert refused(caught) == (412, "NoEtagMatch")


async def test_nothing_of_a_pool_is_written_under_a_lost_lock(
    world: World, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may have changed it; its settings are in a separate document."""
    made = await world.pool("p", {"num.partitions": "3"})
    world.storage.fence.hurry = lambda: None
    save = world.storage.documents.save
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.hset(Keyspace().view, "number", "1")

        async def late(changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
            # As if the request had been paused for longer than its lease.
            await link.delete(Keyspace().lock("oci"))
            return await save(changes, lock)

        before = await link.hgetall(Keyspace().documents("clusters"))
        with monkeypatch.context() as patch:
            patch.setattr(world.storage.documents, "save", late)
            for change in (
                world.catalog.update_pool(world.pool_id(made), None, {"num.partitions": "5"}, {}),
                world.pool("q"),
                world.catalog.delete_pool(world.pool_id(made), None),
            ):
                with pytest.raises(LockLost):
                    await change
        assert await link.hgetall(Keyspace().documents("clusters")) == before
    assert (world.state(made), world.clusters.get(made.cluster).settings.num_partitions) == ("ACTIVE", 3)


async def test_the_default_pool_takes_settings(world: World) -> None:
    await world.catalog.update_pool(DEFAULT, None, {"num.partitions": "5"}, {})
    assert (await world.restart()).pools.get(DEFAULT).version == 2
    assert world.default.settings.num_partitions == 5


async def test_a_deleted_pool_takes_its_streams_along(world: World, any_redis: RedisServer) -> None:
    made = await world.pool()
    inside = await world.stream("inside", pool_id=world.pool_id(made))
    outside = await world.stream("outside")
    await world.clusters.get(made.cluster).topics.create("kafka", 1, {})
    request = await world.catalog.delete_pool(world.pool_id(made), made.etag)
    assert request.resources[0] == (ocids.STREAM_POOL, made.id)
    assert (ocids.STREAM, inside.id) in request.resources
    await world.catalog.streams.settle()
    async with redis.asyncio.from_url(any_redis.url) as link:
        assert not await link.keys(f"*{made.id}*")
    for catalog in (world.catalog, await world.restart()):
        assert (world.state(made), world.state(inside), world.state(outside)) == ("DELETED", "DELETED", "ACTIVE")
        assert sorted(each.name for each in catalog.streams.all()) == ["inside", "kafka", "outside"]
        assert catalog.pools.cluster_of(world.pool_id(made)) is None
        with pytest.raises(OciError, match="Unknown stream pool") as caught:
            await world.stream("late", pool_id=world.pool_id(made))
        assert refused(caught) == (404, "NotAuthorizedOrNotFound")
        with pytest.raises(OciError, match="Unknown stream pool"):
            await catalog.delete_pool(world.pool_id(made), None)


async def test_a_deletion_names_no_more_than_the_first_streams(world: World) -> None:
    made = await world.pool("p")
    topics = world.clusters.get(made.cluster).topics
    for number in range(MOST_NAMED + 3):
        await topics.create(f"s{number}", 1, {})
    named = (await world.catalog.delete_pool(world.pool_id(made), None)).resources
    assert named[0] == (ocids.STREAM_POOL, made.id)
    assert [kind for kind, _ in named[1:]] == [ocids.STREAM] * MOST_NAMED
    assert not list(topics)


async def test_a_deletion_that_storage_refuses_can_be_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.pool()
    streams = [await world.stream(name, pool_id=world.pool_id(made)) for name in ("a", "b")]
    topics = world.clusters.get(made.cluster).topics
    delete = topics.storage.topics.delete

    async def refuse(topic: Topic) -> Topic:
        if topic is topics.get("b").topic:
            raise StorageUnavailable("away")
        return await delete(topic)

    with monkeypatch.context() as patch:
        patch.setattr(topics.storage.topics, "delete", refuse)
        with pytest.raises(StorageUnavailable):
            await world.catalog.delete_pool(world.pool_id(made), None)
    assert (world.state(made), [world.state(each) for each in streams]) == ("ACTIVE", ["DELETED", "ACTIVE"])
    await world.catalog.delete_pool(world.pool_id(made), None)
    assert (world.state(made), world.state(streams[1])) == ("DELETED", "DELETED")


async def test_an_unfinished_deletion_is_completed(world: World) -> None:
    """The cluster has gone, and the server dies before that of its pool is written down."""
    made = await world.pool()
    inside = await world.stream(pool_id=world.pool_id(made))
    await world.clusters.delete(made.cluster)
    await world.catalog.streams.settle()
    await world.restart()
    assert (world.state(made), world.state(inside)) == ("DELETED", "DELETED")


async def test_an_unfinished_creation_is_removed_unless_it_has_topics(world: World) -> None:
    await world.clusters.create("empty", {})
    used = await world.clusters.create("used", {})
    await used.topics.create("t", 1, {})
    catalog = await world.restart()
    assert [name for name, _ in world.clusters] == ["default", "used"]
    assert sorted(pool.name for pool in catalog.pools.all()) == ["DefaultPool", "used"]
    assert [stream.name for stream in catalog.streams.all()] == ["t"]


@pytest.mark.parametrize("whole", [False, True])
async def test_a_pool_whose_cluster_cannot_be_read_is_kept(
    world: World, any_redis: RedisServer, *, whole: bool
) -> None:
    made = await world.pool("p", {"num.partitions": "3"})
    inside = await world.stream("inside", pool_id=world.pool_id(made))
    key = Keyspace().documents(virtual_clusters.KIND)
    async with redis.asyncio.from_url(any_redis.url) as link:
        before: dict[Any, Any] = await link.hgetall(key)
        await world.stop()
        if whole:
            await link.set(key, "spoilt")
        else:
            await link.hset(key, made.cluster, "{")
        catalog = await world.start()
        assert (world.state(made), world.state(inside)) == ("ACTIVE", "ACTIVE")
        for refused_change in (
            catalog.delete_pool(world.pool_id(made), None),
            catalog.update_pool(world.pool_id(made), None, {"num.partitions": "4"}, {}),
        ):
            with pytest.raises(OciError, match=f"virtual cluster {made.cluster} cannot be read") as caught:
                await refused_change
            assert refused(caught) == (409, "IncorrectState")
        await world.stop()
        await link.delete(key)
        await link.hset(key, mapping=before)
        catalog = await world.start()
    assert catalog.pools.get(world.pool_id(made)) == made
    assert world.state(inside) == "ACTIVE"
    broker = catalog.pools.cluster_of(world.pool_id(made))
    assert broker is not None
    assert broker.settings.num_partitions == 3
    assert broker.topics.get("inside").topic.id.hex == inside.id


async def test_a_cluster_that_comes_back_is_not_deleted(world: World, any_redis: RedisServer) -> None:
    """A start that found no cluster has recorded the pool as deleted; then the cluster is restored."""
    made = await world.pool("p")
    inside = await world.stream("inside", pool_id=world.pool_id(made))
    key = Keyspace().documents(virtual_clusters.KIND)
    async with redis.asyncio.from_url(any_redis.url) as link:
        before: dict[Any, Any] = await link.hgetall(key)
        await world.stop()
        await link.delete(key)
        await world.start()
        assert (world.state(made), world.state(inside)) == ("DELETED", "DELETED")
        await world.stop()
        await link.hset(key, mapping=before)
        await world.start()
    assert (world.state(made), world.state(inside)) == ("ACTIVE", "ACTIVE")
    assert world.clusters.get(made.cluster).topics.has("inside")


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("default", [False, True])
async def test_a_pool_whose_record_cannot_be_read_is_kept(
    world: World, any_redis: RedisServer, *, whole: bool, default: bool
) -> None:
    """Its cluster is empty, and would be taken for what a crash left of a creation."""
    made = world.catalog.pools.get(DEFAULT) if default else await world.pool("p", kms_key="key")
    key = Keyspace().documents(world.catalog.documents.pools.kind)
    async with redis.asyncio.from_url(any_redis.url) as link:
        before: dict[Any, Any] = await link.hgetall(key)
        await world.stop()
        if whole:
            await link.set(key, "spoilt")
        else:
            await link.hset(key, made.id, "{")
        catalog = await world.start()
        # It can be used, and not be changed.
        held = catalog.pools.get(world.pool_id(made))
        assert catalog.pools.broker_of(held) is world.clusters.get(made.cluster)
        assert made.id in {each.id for each in catalog.pools.all()}
        assert catalog.pools.known_default_of(COMPARTMENT) == catalog.pools.get(DEFAULT)
        for change in (
            catalog.update_pool(world.pool_id(made), None, {"num.partitions": "4"}, {}),
            catalog.update_pool(world.pool_id(made), None, {}, {"name": "other"}),
        ):
            with pytest.raises(OciError, match=f"record of stream pool {world.pool_id(made)} cannot be read") as caught:
                await change
            assert refused(caught) == (409, "IncorrectState")
        if not default:
            with pytest.raises(OciError, match="cannot be read"):
                await catalog.delete_pool(world.pool_id(made), None)
        inside = await world.stream("inside", pool_id=world.pool_id(made))
        assert [each.pool for each in catalog.streams.all()] == [made.id]
        await world.stop()
        await link.delete(key)
        await link.hset(key, mapping=before)
        catalog = await world.start()
    assert catalog.pools.get(world.pool_id(made)) == made
    assert [each.id for each in catalog.streams.in_pool(made)] == [inside.id]


async def test_the_default_pool_stays(world: World) -> None:
    for change in (world.catalog.delete_pool(DEFAULT, None), world.catalog.move_pool(DEFAULT, None, "elsewhere")):
        with pytest.raises(OciError, match="default stream pool of a compartment cannot") as caught:
            await change
        assert refused(caught) == (409, "Conflict")


async def test_each_compartment_has_a_default_pool_of_its_own(world: World) -> None:
    await world.restart(pools="compartment")
    here = [await world.stream(name) for name in ("a", "b")]
    there = await world.stream("a", compartment="elsewhere")
    assert here[0].pool == here[1].pool != there.pool
    pool = world.catalog.pools.get(ocids.make(ocids.STREAM_POOL, "local", there.pool))
    assert (pool.name, pool.compartment, pool.default) == ("DefaultPool", "elsewhere", True)
    assert world.default.topics.names() == []
    with pytest.raises(OciError, match="default stream pool"):
        await world.catalog.delete_pool(world.pool_id(pool), None)
    await world.restart()
    assert (await world.stream("c")).pool == here[0].pool
    catalog = await world.restart(pools="shared")
    assert (await world.stream("c")).pool == "default"
    await catalog.delete_pool(world.pool_id(pool), None)


async def test_a_pool_of_that_name_is_its_compartments_default_pool(world: World) -> None:
    """Names of pools are unique in a compartment."""
    await world.restart(pools="compartment", lifecycle_delay_ms=1_000)
    made = await world.pool("DefaultPool", {"num.partitions": "3"}, kms_key="key")
    with pytest.raises(OciError, match="is CREATING"):
        await world.stream()
    world.clock.advance(1_000)
    assert (await world.stream("a")).pool == made.id
    catalog = await world.restart()
    assert (await world.stream("b")).pool == made.id
    pool = catalog.pools.get(world.pool_id(made))
    assert (pool.default, pool.kms_key, pool.etag) == (True, "key", made.etag)
    for change in (
        catalog.delete_pool(world.pool_id(made), None),
        catalog.move_pool(world.pool_id(made), None, "elsewhere"),
    ):
        with pytest.raises(OciError, match="default stream pool"):
            await change
    await catalog.update_pool(world.pool_id(made), None, {}, {"name": "renamed"})
    world.clock.advance(1_000)
    await world.pool("DefaultPool")
    assert (await world.stream("c")).pool == made.id


async def test_a_pool_of_that_name_that_was_deleted_is_not(world: World) -> None:
    await world.restart(pools="compartment")
    made = await world.pool("DefaultPool")
    await world.catalog.delete_pool(world.pool_id(made), None)
    assert (await world.stream()).pool != made.id


async def test_a_default_pool_that_was_deleted_while_pools_were_shared_is_none(world: World) -> None:
    await world.restart(pools="compartment")
    stream = await world.stream()
    await world.catalog.delete_stream(world.stream_id(stream), None)
    catalog = await world.restart(pools="shared")
    await catalog.delete_pool(ocids.make(ocids.STREAM_POOL, "local", stream.pool), None)
    await world.restart(pools="compartment")
    assert (await world.stream()).pool != stream.pool


async def test_a_pool_moves_with_its_streams(world: World) -> None:
    made = await world.pool()
    inside = await world.stream(pool_id=world.pool_id(made))
    await world.clusters.get(made.cluster).topics.create("kafka", 1, {})
    await world.catalog.move_pool(world.pool_id(made), made.etag, "elsewhere")
    catalog = await world.restart()
    assert catalog.pools.get(world.pool_id(made)).compartment == "elsewhere"
    assert catalog.streams.get(world.stream_id(inside)).compartment == "elsewhere"
    assert {each.compartment for each in catalog.streams.all()} == {"elsewhere"}


async def test_a_pool_moves_to_no_compartment_that_has_one_of_its_name(world: World) -> None:
    made = await world.pool()
    inside = await world.stream(pool_id=world.pool_id(made))
    other, _ = await world.catalog.create_pool(None, "p", "elsewhere", {})
    with pytest.raises(OciError, match="p exists already") as caught:
        await world.catalog.move_pool(world.pool_id(made), None, "elsewhere")
    assert refused(caught) == (409, "Conflict")
    assert world.catalog.pools.get(world.pool_id(made)) == made
    assert world.catalog.streams.get(world.stream_id(inside)).compartment == COMPARTMENT
    await world.catalog.move_pool(world.pool_id(made), None, COMPARTMENT)
    await world.catalog.delete_pool(world.pool_id(other), None)
    await world.catalog.move_pool(world.pool_id(made), None, "elsewhere")


async def test_a_pool_and_its_streams_move_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller learns whether it moved, and a server that dies leaves neither half."""
    made = await world.pool()
    inside = await world.stream(pool_id=world.pool_id(made))
    documents = world.storage.documents
    save, saved = documents.save, 0

    async def once(changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        nonlocal saved
        saved += 1
        if saved > 1:
            raise StorageUnavailable("gone")
        return await save(changes, lock)

    monkeypatch.setattr(documents, "save", once)
    await world.catalog.move_pool(world.pool_id(made), None, "elsewhere")
    monkeypatch.undo()
    catalog = await world.restart()
    assert catalog.pools.get(world.pool_id(made)).compartment == "elsewhere"
    assert catalog.streams.get(world.stream_id(inside)).compartment == "elsewhere"


async def test_states_in_between(world: World) -> None:
    await world.restart(lifecycle_delay_ms=1_000)
    made = await world.pool()
    assert world.state(made) == "CREATING"
    with pytest.raises(OciError, match="is CREATING") as caught:
        await world.stream(pool_id=world.pool_id(made))
    assert refused(caught) == (409, "IncorrectState")
    assert world.catalog.pools.cluster_of(world.pool_id(made)) is None
    await world.restart()
    world.clock.advance(1_000)
    assert world.state(made) == "ACTIVE"
    await world.catalog.update_pool(world.pool_id(made), None, {}, {})
    assert world.state(made) == "UPDATING"
    assert world.catalog.pools.cluster_of(world.pool_id(made)) is not None
    world.clock.advance(1_000)
    await world.catalog.delete_pool(world.pool_id(made), None)
    assert world.state(made) == "DELETING"
    world.clock.advance(1_000)
    assert world.state(made) == "DELETED"


async def test_a_compartments_default_pool_can_be_used_at_once(world: World) -> None:
    await world.restart(pools="compartment", lifecycle_delay_ms=1_000)
    assert world.state(await world.stream()) == "CREATING"


# Retry tokens


def token(text: str, body: dict[str, str], user: str = "u") -> TokenUse:
    use = TokenUse.of(text, "CreateStreamPool", user, body)
    assert use is not None
    return use


async def test_a_retry_token_makes_one_pool(world: World) -> None:
    first, request = await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {})
    await world.restart()
    assert await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {}) == (first, request)
    assert len(world.catalog.pools.all()) == 2
    with pytest.raises(OciError, match="opc-retry-token") as caught:
        await world.catalog.create_pool(token("t", {"other": "body"}), "q", COMPARTMENT, {})
    assert refused(caught) == (400, "InvalidParameter")
    other, _ = await world.catalog.create_pool(token("t", {}, "somebody else"), "q", COMPARTMENT, {})
    assert other.id != first.id


async def test_a_retry_token_makes_one_pool_also_where_an_answer_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = world.storage.documents
    save = documents.save

    async def unanswered(changes: Mapping[tuple[str, str], bytes | None], lock: Lock | None = None) -> dict[str, int]:
        told = await save(changes, lock)
        if any(kind == "oci.tokens" for kind, _ in changes):
            raise StorageUnavailable("the answer was lost")
        return told

    use = token("t", {"name": "a"})
    with monkeypatch.context() as patch:
        patch.setattr(documents, "save", unanswered)
        with pytest.raises(StorageUnavailable):
            await world.catalog.create_pool(use, "a", COMPARTMENT, {})
    record, _ = await world.catalog.create_pool(use, "a", COMPARTMENT, {})
    assert sorted(await documents.load("oci.pools")) == sorted([record.id, "default"])


async def test_a_retry_token_is_good_for_a_day(world: World) -> None:
    await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {})
    world.clock.advance(86_400_000)
    with pytest.raises(OciError, match="exists already"):
        await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {})
    await world.catalog.create_pool(token("u", {}), "q", COMPARTMENT, {})
    assert len(world.catalog.documents.tokens.values) == 1


async def test_a_retry_token_whose_pool_has_gone(world: World) -> None:
    made, _ = await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {})
    await world.catalog.delete_pool(world.pool_id(made), None)
    with pytest.raises(OciError, match="deleted since") as caught:
        await world.catalog.create_pool(token("t", {}), "p", COMPARTMENT, {})
    assert refused(caught) == (409, "InvalidatedRetryToken")
