"""Streams and the topics that they are."""

import asyncio
from collections.abc import Mapping

import pytest
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.broker.runtime.retry import PATIENCE_S
from headrace.broker.topics.reconcile import refresh_all
from headrace.membership.view import Lock
from headrace.oci import ocids
from headrace.oci.errors import OciError
from headrace.oci.resources.records import StreamRecord
from headrace.records.build import build
from headrace.storage.layout.keys import Keyspace
from headrace.topics.errors import InvalidTopicName, StorageUnavailable
from headrace.topics.model import Appended

from .conftest import COMPARTMENT, World

Changes = Mapping[tuple[str, str], bytes | None]
DAY_MS = 86_400_000


def refused(caught: "pytest.ExceptionInfo[OciError]") -> tuple[int, str]:
    return caught.value.status, caught.value.code


async def records_in(world: World, stream_id: str) -> int:
    broker, live = world.catalog.streams.find(stream_id)
    return len(await broker.storage.logs.read(live.partitions[0].stream, 0, 1_000))


async def put(world: World, stream_id: str) -> None:
    broker, live = world.catalog.streams.find(stream_id)
    answers: list[Appended | Exception] = []
    broker.append(live.topic.name, 0, build([(None, b"x", 1, ())]), answers.append)
    await world.storage.documents.load("nothing")  # behind it on the same connection
    assert isinstance(answers[0], Appended)


async def test_a_stream_is_a_topic_and_survives_a_restart(world: World) -> None:
    made = await world.stream("s", partitions=3, hours=48, freeform_tags={"a": "b"}, defined_tags={"n": {"k": 1}})
    live = world.default.topics.get("s")
    assert live.topic.id.hex == made.id
    assert (len(live.partitions), live.config.retention_ms) == (3, 48 * 3_600_000)
    await put(world, world.stream_id(made))
    catalog = await world.restart()
    assert catalog.streams.get(world.stream_id(made)) == made
    assert (made.etag, made.pool, made.compartment) == (f"{made.id}-1", "default", COMPARTMENT)
    assert await records_in(world, world.stream_id(made)) == 1
    assert catalog.streams.all() == [made]


async def test_finding_a_stream_is_one_look_up(world: World) -> None:
    made = await world.stream()
    found = world.catalog.streams.find(world.stream_id(made))
    assert world.catalog.streams.find(world.stream_id(made)) is found
    assert found == (world.default, world.default.topics.get("s"))


async def test_the_region_in_an_ocid_does_not_count(world: World) -> None:
    made = await world.stream()
    elsewhere = ocids.make(ocids.STREAM, "elsewhere", made.id)
    assert world.catalog.streams.find(elsewhere)[1] is world.default.topics.get("s")
    assert world.catalog.streams.get(elsewhere) == made
    catalog = await world.restart(region="eu-paris-1")
    assert catalog.streams.ocid(made.id) == f"ocid1.stream.oc1.eu-paris-1.{made.id}"
    assert catalog.streams.get(world.stream_id(made)) == made


@pytest.mark.parametrize(
    "stream_id", ["", "x", "ocid1.stream.oc1.local.x", "ocid1.streampool.oc1.local.default", f"{'0' * 32}"]
)
async def test_streams_that_are_none(world: World, stream_id: str) -> None:
    for look_up in (world.catalog.streams.find, world.catalog.streams.get):
        with pytest.raises(OciError, match=f"Unknown stream {stream_id}") as caught:
            look_up(stream_id)
        assert refused(caught) == (404, "NotAuthorizedOrNotFound")


async def test_a_topic_made_through_kafka_is_a_stream_of_its_pool(world: World) -> None:
    live = await world.default.topics.create("k", 2, {"retention.ms": "3600001"})
    (record,) = world.catalog.streams.all()
    assert (record.name, record.partitions, record.retention_hours, record.pool) == ("k", 2, 2, "default")
    assert (record.compartment, record.created_ms, record.etag) == ("", live.topic.created_ms, f"{live.topic.id.hex}-0")
    assert world.catalog.streams.find(world.stream_id(record)) == (world.default, live)

    changed, _ = await world.catalog.update_stream(
        world.stream_id(record), record.etag, None, {"freeform_tags": {"a": "b"}}
    )
    catalog = await world.restart()
    assert catalog.streams.all() == [changed]
    assert (changed.freeform_tags, changed.version, changed.retention_hours) == ({"a": "b"}, 1, 2)


async def test_a_topic_without_end(world: World) -> None:
    await world.default.topics.create("k", 1, {"retention.ms": "-1"})
    assert world.catalog.streams.all()[0].retention_hours == -1


async def test_a_name_that_is_taken(world: World) -> None:
    await world.stream("s")
    await world.default.topics.create("k", 1, {})
    for name in ("s", "k"):
        with pytest.raises(OciError, match=f"{name} exists already") as caught:
            await world.stream(name)
        assert refused(caught) == (409, "Conflict")
    pool = await world.pool()
    assert (await world.stream("s", pool_id=world.pool_id(pool))).pool == pool.id


async def test_a_name_that_cannot_be_a_topics(world: World) -> None:
    with pytest.raises(InvalidTopicName):
        await world.stream("with space")
    assert world.catalog.streams.all() == []


async def test_too_many_partitions(world: World) -> None:
    await world.restart(partitions_max=5)
    await world.stream("a", partitions=3)
    await world.default.topics.create("k", 1, {})
    for partitions in (2, 10**6):
        with pytest.raises(OciError, match=r"^You exceed the number of allowed partitions$") as caught:
            await world.stream("b", partitions=partitions)
        assert refused(caught) == (400, "LimitExceeded")
    await world.stream("b", partitions=1)
    await world.restart(partitions_max=0)
    await world.stream("c", partitions=2)
    with pytest.raises(OciError, match="exceed"):
        await world.stream("d", partitions=10_001)


async def test_a_deleted_stream_is_known_for_90_days(world: World) -> None:
    made = await world.stream(partitions=2)
    stream_id = world.stream_id(made)
    await world.catalog.delete_stream(stream_id, made.etag)
    assert world.default.topics.names() == []
    for catalog in (world.catalog, await world.restart()):
        assert (world.state(made), [each.id for each in catalog.streams.all()]) == ("DELETED", [made.id])
        assert catalog.streams.get(stream_id).partitions == 2
        with pytest.raises(OciError, match="Unknown stream"):
            catalog.streams.find(stream_id)
        for change in (catalog.delete_stream(stream_id, None), catalog.update_stream(stream_id, None, None, {})):
            with pytest.raises(OciError, match="Unknown stream") as caught:
                await change
            assert refused(caught) == (404, "NotAuthorizedOrNotFound")
    world.clock.advance(90 * DAY_MS - 1)
    assert world.state(made) == "DELETED"
    world.clock.advance(1)
    with pytest.raises(OciError, match="Unknown stream"):
        world.catalog.streams.get(stream_id)
    assert world.catalog.streams.all() == []
    assert await world.storage.documents.load("oci.streams")
    await world.restart()
    assert not await world.storage.documents.load("oci.streams")


async def test_a_name_can_be_used_again(world: World) -> None:
    first = await world.stream()
    await put(world, world.stream_id(first))
    await world.catalog.delete_stream(world.stream_id(first), None)
    second = await world.stream()
    assert first.id != second.id
    assert await records_in(world, world.stream_id(second)) == 0
    assert len(world.catalog.streams.all()) == 2


@pytest.mark.parametrize("through_oci", [True, False])
async def test_a_topic_made_and_deleted_through_kafka_leaves_nothing(world: World, through_oci: bool) -> None:
    await world.default.topics.create("t", 1, {})
    (record,) = world.catalog.streams.all()
    if through_oci:
        await world.catalog.delete_stream(world.stream_id(record), None)
    else:
        await world.default.topics.delete("t")
    for catalog in (world.catalog, await world.restart()):
        assert [catalog.state_of(each) for each in catalog.streams.all()] == ["DELETED"] * through_oci


async def test_a_stream_deleted_through_kafka_is_a_deleted_stream(world: World) -> None:
    record = await world.stream("t")
    await world.default.topics.delete("t")
    assert world.state(record) == "DELETED"
    await world.catalog.streams.settle()
    await world.restart()
    assert world.state(record) == "DELETED"
    await world.stream("t")


async def test_a_topic_that_is_there_is_kept_whatever_its_document_says(world: World) -> None:
    record = await world.stream("t")
    # As older servers wrote it of a stream that another one had moved to another pool.
    documents = world.catalog.documents
    await documents.exclusively(documents.save({(documents.streams, record.id): documents.changed(record, "DELETING")}))
    for _ in range(2):
        await world.restart()
        assert [each.topic.name for each in world.default.topics] == ["t"]
        assert world.state(record) == "ACTIVE"


@pytest.mark.parametrize("pooled", [False, True])
async def test_a_stream_whose_topic_cannot_be_read_is_not_taken_for_deleted(
    world: World, any_redis: RedisServer, *, pooled: bool
) -> None:
    pool = await world.pool() if pooled else None
    record = await world.stream("t", pool_id=None if pool is None else world.pool_id(pool))
    gone = await world.stream("gone")
    await put(world, world.stream_id(record))
    key = Keyspace(cluster="default" if pool is None else pool.cluster).topics
    async with redis.asyncio.from_url(any_redis.url) as link:
        before = await link.hget(key, "t")
        assert before is not None
        await world.stop()
        await link.hset(key, "t", "{")
        await link.hdel(Keyspace().topics, "gone")
        catalog = await world.start()
        assert (world.state(record), world.state(gone)) == ("ACTIVE", "DELETED")
        with pytest.raises(OciError, match="Unknown stream"):
            await catalog.delete_stream(world.stream_id(record), None)
        await world.stop()
        await link.hset(key, "t", before)
        catalog = await world.start()
    assert catalog.streams.get(world.stream_id(record)) == record
    assert await records_in(world, world.stream_id(record)) == 1


async def test_a_record_that_cannot_be_read_is_not_replaced(world: World, any_redis: RedisServer) -> None:
    record = await world.stream("t", freeform_tags={"a": "b"})
    key = Keyspace().documents(world.catalog.documents.streams.kind)
    async with redis.asyncio.from_url(any_redis.url) as link:
        before = await link.hget(key, record.id)
        assert before is not None
        await world.stop()
        await link.hset(key, record.id, "{")
        catalog = await world.start()
        await put(world, world.stream_id(record))
        with pytest.raises(OciError, match=f"record of stream {world.stream_id(record)} cannot be read") as caught:
            await catalog.update_stream(world.stream_id(record), None, None, {"freeform_tags": {}})
        assert refused(caught) == (409, "IncorrectState")
        await world.stop()
        await link.hset(key, record.id, before)
        catalog = await world.start()
    assert catalog.streams.get(world.stream_id(record)) == record


@pytest.mark.parametrize("first", ["source", "target"])
async def test_a_move_by_another_broker_is_taken_over_from_either_end(world: World, first: str) -> None:
    pool = await world.pool()
    record = await world.stream("t", pool_id=world.pool_id(pool))
    source = world.clusters.get(pool.cluster).topics
    await world.storage.move_topic(source.get("t").topic, pool.cluster, "default")
    # A full reload uses the order of the virtual clusters.
    tables = [source, world.default.topics]
    for table in tables if first == "source" else reversed(tables):
        await refresh_all(table)
    broker, live = world.catalog.streams.find(world.stream_id(record))
    assert (broker, live) == (world.default, world.default.topics.get("t"))


async def test_a_deletion_through_kafka_is_written_down_when_storage_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await world.stream("t")

    async def away(*_: object) -> None:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.storage.documents, "save", away)
        await world.default.topics.delete("t")
        await turns()
        assert world.state(record) == "DELETED"
    world.clock.advance(1_000)
    await world.catalog.streams.settle()
    assert b"DELETING" in (await world.storage.documents.load("oci.streams"))[record.id]


async def test_what_was_deleted_behind_our_back_is_deleted(world: World) -> None:
    """The topic goes, and the server dies before it is written down."""
    record = await world.stream("t")
    await world.storage.topics.delete(world.default.topics.get("t").topic)
    await world.restart()
    assert world.state(record) == "DELETED"


async def test_a_stream_that_was_written_down_without_an_answer_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = world.storage.documents
    save = documents.save

    async def unanswered(changes: Changes, lock: Lock | None = None) -> dict[str, int]:
        await save(changes, lock)
        raise StorageUnavailable("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(documents, "save", unanswered)
        with pytest.raises(StorageUnavailable):
            await world.stream("t")
    record = await world.stream("t")
    world.clock.advance(1_000)
    await world.catalog.streams.settle()
    assert [each.id for each in world.catalog.streams.all()] == [record.id]
    assert list(await documents.load("oci.streams")) == [record.id]


@pytest.mark.parametrize("stored", [True, False])
async def test_what_was_done_is_written_down_once_storage_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """A connection that is lost for a moment leaves no unwanted topic without a compartment and tags."""
    documents = world.storage.documents
    save, tries = documents.save, 0

    async def unanswered(changes: Changes, lock: Lock | None = None) -> dict[str, int]:
        nonlocal tries
        tries += 1
        if stored or tries > 2:
            await save(changes, lock)
        if tries <= 2:
            raise StorageUnavailable("the answer was lost")
        return {}

    world.catalog.documents.patience_s = PATIENCE_S
    with monkeypatch.context() as patch:
        patch.setattr(documents, "save", unanswered)
        made = await world.stream("t", freeform_tags={"a": "b"})
        tries = 0
        await world.catalog.delete_stream(world.stream_id(made), None)
    catalog = await world.restart()
    (record,) = catalog.streams.all()
    assert (record.id, record.compartment, record.freeform_tags) == (made.id, COMPARTMENT, {"a": "b"})
    assert world.state(record) == "DELETED"
    assert {each.operation for each in catalog.work_requests()} == {"CREATE_STREAM", "DELETE_STREAM"}


async def test_a_stream_that_cannot_be_written_down_is_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(world.storage.documents, "save", away)
        with pytest.raises(StorageUnavailable):
            await world.stream("t")
    assert world.default.topics.names() == []
    assert world.catalog.streams.all() == []
    await world.stream("t")


async def test_etags(world: World) -> None:
    made = await world.stream()
    stream_id = world.stream_id(made)
    changed, _ = await world.catalog.update_stream(stream_id, made.etag, None, {"freeform_tags": {"a": "b"}})
    assert changed.etag != made.etag
    for change in (
        world.catalog.update_stream(stream_id, made.etag, None, {}),
        world.catalog.delete_stream(stream_id, made.etag),
        world.catalog.move_stream(stream_id, made.etag, "elsewhere"),
    ):
        with pytest.raises(OciError) as caught:
            await change
        assert refused(caught) == (412, "NoEtagMatch")
    assert world.catalog.streams.get(stream_id) == changed
    await world.catalog.delete_stream(stream_id, changed.etag)


async def test_only_what_is_given_is_changed(world: World) -> None:
    made = await world.stream(freeform_tags={"a": "b"}, defined_tags={"n": {"k": "v"}})
    changed, _ = await world.catalog.update_stream(world.stream_id(made), None, None, {"freeform_tags": {}})
    assert (changed.freeform_tags, changed.defined_tags) == ({}, {"n": {"k": "v"}})


# States that take time


async def test_states_in_between(world: World) -> None:
    await world.restart(lifecycle_delay_ms=1_000)
    made = await world.stream()
    stream_id = world.stream_id(made)
    assert world.state(made) == "CREATING"
    for change in (
        world.catalog.delete_stream(stream_id, None),
        world.catalog.update_stream(stream_id, None, None, {}),
    ):
        with pytest.raises(OciError, match="is CREATING") as caught:
            await change
        assert refused(caught) == (409, "IncorrectState")
    with pytest.raises(OciError, match="is CREATING") as caught:
        world.catalog.streams.find(stream_id)
    assert refused(caught) == (409, "IncorrectState")
    world.clock.advance(999)
    assert world.state(made) == "CREATING"
    world.clock.advance(1)
    assert world.state(made) == "ACTIVE"
    assert world.catalog.streams.find(stream_id)[1].topic.name == "s"

    await world.catalog.update_stream(stream_id, None, None, {})
    assert world.state(made) == "UPDATING"
    assert world.catalog.streams.find(stream_id)[1].topic.name == "s"
    world.clock.advance(1_000)
    assert world.state(made) == "ACTIVE"

    await world.catalog.delete_stream(stream_id, None)
    assert world.state(made) == "DELETING"
    with pytest.raises(OciError, match="Unknown stream"):
        world.catalog.streams.find(stream_id)
    with pytest.raises(OciError, match="exists already"):
        await world.stream()
    with pytest.raises(OciError, match="is DELETING"):
        await world.catalog.delete_stream(stream_id, None)
    world.clock.advance(1_000)
    assert world.state(made) == "DELETED"
    assert (await world.stream()).name == "s"


async def test_states_go_on_over_a_restart(world: World) -> None:
    await world.restart(lifecycle_delay_ms=1_000)
    made = await world.stream()
    world.clock.advance(400)
    catalog = await world.restart()
    assert world.state(made) == "CREATING"
    with pytest.raises(OciError, match="is CREATING"):
        catalog.streams.find(world.stream_id(made))
    world.clock.advance(600)
    assert world.state(made) == "ACTIVE"
    assert catalog.streams.find(world.stream_id(made))[0] is world.default
    await catalog.delete_stream(world.stream_id(made), None)
    await world.restart()
    assert world.state(made) == "DELETING"
    world.clock.advance(1_000)
    assert world.state(made) == "DELETED"


# Moves


async def test_a_stream_moves_to_another_pool_with_its_messages(world: World) -> None:
    pool = await world.pool()
    made = await world.stream()
    stream_id = world.stream_id(made)
    await put(world, stream_id)
    moved, _ = await world.catalog.update_stream(stream_id, None, world.pool_id(pool), {})
    assert (moved.pool, moved.compartment) == (pool.id, COMPARTMENT)
    assert world.catalog.streams.find(stream_id)[0] is world.clusters.get(pool.id)
    assert world.default.topics.names() == []
    await put(world, stream_id)
    await world.stream("s")
    catalog = await world.restart()
    assert await records_in(world, stream_id) == 2
    assert catalog.streams.get(stream_id) == moved
    assert [each.name for each in catalog.streams.in_pool(pool)] == ["s"]


async def test_a_move_that_was_not_written_down_has_happened(world: World) -> None:
    pool = await world.pool()
    made = await world.stream()
    await world.clusters.move("s", "default", pool.cluster)
    catalog = await world.restart()
    assert catalog.streams.get(world.stream_id(made)).pool == pool.id


async def test_moves_that_cannot_be(world: World) -> None:
    pool = await world.pool()
    made = await world.stream()
    await world.stream("s", pool_id=world.pool_id(pool))
    with pytest.raises(OciError, match="exists already") as caught:
        await world.catalog.update_stream(world.stream_id(made), None, world.pool_id(pool), {})
    assert refused(caught) == (409, "Conflict")
    with pytest.raises(OciError, match="Unknown stream pool") as caught:
        await world.catalog.update_stream(world.stream_id(made), None, "ocid1.streampool.oc1.local.none", {})
    assert refused(caught) == (404, "NotAuthorizedOrNotFound")
    assert world.catalog.streams.get(world.stream_id(made)) == made


async def test_another_compartment_is_another_default_pool(world: World) -> None:
    await world.restart(pools="compartment")
    made = await world.stream()
    await world.catalog.move_stream(world.stream_id(made), made.etag, "elsewhere")
    moved = world.catalog.streams.get(world.stream_id(made))
    (there,) = [pool for pool in world.catalog.pools.all() if pool.compartment == "elsewhere"]
    assert (moved.compartment, moved.pool, moved.version) == ("elsewhere", there.id, 2)
    assert world.clusters.get(there.id).topics.names() == ["s"]


async def test_with_a_shared_pool_only_the_compartment_changes(world: World) -> None:
    made = await world.stream()
    await world.catalog.move_stream(world.stream_id(made), None, "elsewhere")
    moved = world.catalog.streams.get(world.stream_id(made))
    assert (moved.compartment, moved.pool) == ("elsewhere", "default")
    assert world.default.topics.names() == ["s"]


async def turns() -> None:
    """Let the loop turn a few times."""
    for _ in range(20):
        await asyncio.sleep(0)


# Several at once


async def test_of_many_that_ask_for_a_name_one_gets_it(world: World) -> None:
    await world.restart(pools="compartment")
    made = await asyncio.gather(*(world.stream("s") for _ in range(10)), return_exceptions=True)
    (stream,) = [each for each in made if isinstance(each, StreamRecord)]
    assert {each.status for each in made if isinstance(each, OciError)} == {409}
    assert world.catalog.streams.all() == [stream]
    assert len([pool for pool in world.catalog.pools.all() if pool.compartment == COMPARTMENT]) == 1


async def test_of_many_changes_with_one_etag_one_happens(world: World) -> None:
    made = await world.stream()
    changes = [
        world.catalog.update_stream(world.stream_id(made), made.etag, None, {"freeform_tags": {"n": str(number)}})
        for number in range(10)
    ]
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert sorted(getattr(each, "status", 200) for each in found) == [200] + [412] * 9
    assert world.catalog.streams.get(world.stream_id(made)).version == 2


async def test_a_change_is_finished_when_the_one_who_asked_has_gone(world: World) -> None:
    asking = asyncio.ensure_future(world.stream("s"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    made = await world.stream("behind-it")
    (first,) = [each for each in world.catalog.streams.all() if each != made]
    assert (first.name, first.version, first.compartment) == ("s", 1, COMPARTMENT)
