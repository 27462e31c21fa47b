"""Random creations, changes, moves and deletions of streams and pools, by servers that die at any write.

Acknowledged changes persist, others have happened or not, and every stream is where its record says.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import redis
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.harness.redis import RedisServer
from tests.oci.resources.conftest import World

from headrace.membership.view import Lock
from headrace.oci.errors import OciError
from headrace.oci.resources.records import PoolRecord, StreamRecord, is_deleted
from headrace.records.build import build
from headrace.storage.documents import RedisDocuments
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import ClusterParts, RedisStorage
from headrace.storage.topics import RedisTopics
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Topic

picks = st.integers(0, 1_000)
names = st.sampled_from(["a", "b", "c"])
tags = st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"))
lives = st.none() | st.integers(0, 5)
"""How many writes a server makes before it dies; None: it lives."""


class Fuse:
    """Burns down with every write."""

    left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            if self.left == 0:
                raise StorageUnavailable("the server is dead")
            self.left -= 1


class DyingDocuments(RedisDocuments):
    fuse: Fuse

    async def save(self, changes: Any, lock: Lock | None = None) -> dict[str, int]:
        self.fuse.burn()
        return await super().save(changes, lock)


class DyingTopics(RedisTopics):
    fuse: Fuse

    async def create(self, topic: Topic) -> None:
        self.fuse.burn()
        await super().create(topic)

    async def delete(self, topic: Topic) -> Topic:
        self.fuse.burn()
        await self._remove("begin", str(topic.id), self._keyspace.cluster, topic.name)
        self.fuse.burn()
        await self.drop_streams(topic)
        self.fuse.burn()
        await self._remove("end", str(topic.id))
        return topic


class DyingStorage(RedisStorage):
    """Stops writing when its fuse has burnt down; views of other clusters share it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fuse = Fuse()
        self.documents = DyingDocuments(self.scripts, Keyspace(), self.fence)
        self.documents.fuse = self.fuse
        self.topics = self._dying(Keyspace())

    def _dying(self, keyspace: Keyspace) -> DyingTopics:
        made = DyingTopics(self.scripts, keyspace, self.fence, self.logs, self.native)
        made.fuse = self.fuse
        return made

    def in_cluster(self, name: str) -> ClusterParts:
        parts = super().in_cluster(name)
        parts.topics, parts.documents = self._dying(parts.keyspace), self.documents
        return parts

    async def move_topic(self, topic: Topic, source: str, target: str) -> None:
        self.fuse.burn()
        await super().move_topic(topic, source, target)


class Dying(World):
    """A world whose servers may die at a write."""

    storage_class = DyingStorage
    storage: DyingStorage

    async def die(self) -> None:
        """What a killed server leaves: connections that close."""
        self.storage.fuse.left = 0
        streams = self.catalog.streams
        if streams._writing is not None:  # noqa: SLF001  # a process that is killed waits for nothing
            streams._writing.cancel()  # noqa: SLF001
        await self.clusters.stop()
        await self.storage.close()


class Machine(RuleBasedStateMachine):
    """Random changes. `streams` and `pools` are what was acknowledged, `records` how many each stream has."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        with redis.Redis.from_url(self.url) as link:
            link.flushall()
        self.runner = asyncio.Runner()
        self.world = Dying(self.url)
        self.streams: dict[str, StreamRecord] = {}
        self.pools: dict[str, PoolRecord] = {}
        self.records: dict[str, int] = {}
        self.run(self.world.start())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        self.run(self.world.stop())
        self.runner.close()

    # What there is to choose from: in the order in which it was made, since IDs are random

    def a_stream(self, pick: int) -> StreamRecord | None:
        alive = [each for each in self.streams.values() if not is_deleted(each)]
        return alive[pick % len(alive)] if alive else None

    def a_pool(self, pick: int) -> PoolRecord:
        alive = [each for each in self.pools.values() if not is_deleted(each)]
        alive.insert(0, self.world.catalog.pools.get("ocid1.streampool.oc1.local.default"))
        return alive[pick % len(alive)]

    def change(self, coroutine: Coroutine[Any, Any, Any], left: int | None) -> Any:
        """A change; None when it was refused, or when the server died of it, which is then started again."""
        self.world.storage.fuse.left = left
        try:
            done = self.run(coroutine)
            self.run(self._settle())
            return done
        except OciError as error:
            self.world.storage.fuse.left = None
            note(f"refused: {error}")
        except StorageUnavailable:
            note("the server dies")
            self.run(self.world.die())
            self.run(self.world.start())
            self.relearn()
        return None

    async def _settle(self) -> None:
        """The change was answered, so the server lives: it may have to try again what it does on its own."""
        for _ in range(20):
            await asyncio.sleep(0)
        self.world.storage.fuse.left = None
        self.world.clock.advance(1_000)
        await self.world.catalog.streams.settle()

    def relearn(self) -> None:
        """After a death: nothing that was acknowledged is lost, and what was not acknowledged may be there."""
        catalog = self.world.catalog
        for stream in catalog.streams.all():
            known = self.streams.get(stream.id)
            if known is None:
                self.records[stream.id] = 0
            elif is_deleted(known):
                assert is_deleted(stream), "a deleted stream came back"
            self.streams[stream.id] = stream
        missing = self.streams.keys() - {each.id for each in catalog.streams.all()}
        for unique in missing:
            # Its deletion had begun, and there never was a record to say so.
            assert self.streams[unique].version == 0, "a stream got lost"
            del self.streams[unique]
        for pool in catalog.pools.all():
            known_pool = self.pools.get(pool.id)
            if known_pool is not None and is_deleted(known_pool):
                assert is_deleted(pool), "a deleted pool came back"
            if pool.id != "default":
                self.pools[pool.id] = pool

    # Changes

    @rule()
    def restart(self) -> None:
        self.run(self.world.restart())

    @rule(name=names, pick=picks, tags=tags, left=lives)
    def create_stream(self, name: str, pick: int, tags: dict[str, str], left: int | None) -> None:
        pool = self.a_pool(pick)
        made = self.change(self.world.stream(name, pool_id=self.world.pool_id(pool), freeform_tags=tags), left)
        if made is not None:
            self.streams[made.id] = made
            self.records[made.id] = 0

    @rule(pick=picks)
    def put(self, pick: int) -> None:
        stream = self.a_stream(pick)
        if stream is not None:
            self.run(self._put(stream))
            self.records[stream.id] += 1

    async def _put(self, stream: StreamRecord) -> None:
        broker, live = self.world.catalog.streams.find(self.world.stream_id(stream))
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        broker.append(live.topic.name, 0, build([(None, b"x", 1, ())]), done.set_result)
        assert not isinstance(await done, Exception)

    @rule(pick=picks, to=picks, tags=tags, left=lives)
    def update_stream(self, pick: int, to: int, tags: dict[str, str], left: int | None) -> None:
        stream, pool = self.a_stream(pick), self.a_pool(to)
        if stream is not None:
            fields = {"freeform_tags": tags}
            changing = self.world.catalog.update_stream(
                self.world.stream_id(stream), stream.etag, self.world.pool_id(pool), fields
            )
            changed = self.change(changing, left)
            if changed is not None:
                self.streams[stream.id] = changed[0]

    @rule(pick=picks, left=lives)
    def delete_stream(self, pick: int, left: int | None) -> None:
        stream = self.a_stream(pick)
        if stream is not None and self.change(
            self.world.catalog.delete_stream(self.world.stream_id(stream), None), left
        ):
            self.streams[stream.id] = self.world.catalog.streams.get(self.world.stream_id(stream))
            assert is_deleted(self.streams[stream.id])

    @rule(pick=picks, left=lives)
    def delete_topic(self, pick: int, left: int | None) -> None:
        """Through Kafka."""
        stream = self.a_stream(pick)
        if stream is not None:
            broker, live = self.world.catalog.streams.find(self.world.stream_id(stream))
            self.change(self._delete_topic(broker, live.topic.name), left)
            found = {each.id: each for each in self.world.catalog.streams.all()}.get(stream.id)
            if found is not None:
                self.streams[stream.id] = found
            elif stream.id in self.streams:
                assert self.streams.pop(stream.id).version == 0, "a stream left no record"

    async def _delete_topic(self, broker: Any, name: str) -> None:
        await broker.topics.delete(name)

    @rule(name=names, left=lives)
    def create_pool(self, name: str, left: int | None) -> None:
        made = self.change(self.world.pool(name), left)
        if made is not None:
            self.pools[made.id] = made

    @rule(pick=picks, left=lives)
    def delete_pool(self, pick: int, left: int | None) -> None:
        pool = self.a_pool(pick)
        if pool.default:
            return
        inside = [each.id for each in self.world.catalog.streams.in_pool(pool)]
        if self.change(self.world.catalog.delete_pool(self.world.pool_id(pool), None), left):
            self.pools[pool.id] = self.world.catalog.pools.get(self.world.pool_id(pool))
            for unique in inside:
                record = self.world.catalog.streams.get(self.world.stream_id(self.streams[unique]))
                assert is_deleted(record)
                self.streams[unique] = record

    # What always holds

    @invariant()
    def everything_is_as_it_was_acknowledged(self) -> None:
        catalog = self.world.catalog
        told = {each.id: each for each in catalog.streams.all()}
        assert {unique: _comparable(each) for unique, each in told.items()} == {
            unique: _comparable(each) for unique, each in self.streams.items()
        }
        assert {each.id: each for each in catalog.pools.all() if each.id != "default"} == self.pools

    @invariant()
    def every_stream_is_where_its_record_says(self) -> None:
        self.run(self._check_places())

    async def _check_places(self) -> None:
        catalog = self.world.catalog
        pools = {each.id: each for each in catalog.pools.all()}
        clusters = {name for name, _ in self.world.clusters}
        assert {each.cluster for each in pools.values() if not is_deleted(each)} == clusters
        alive = 0
        for stream in catalog.streams.all():
            if is_deleted(stream):
                continue
            alive += 1
            broker, live = catalog.streams.find(self.world.stream_id(stream))
            assert broker.cluster == pools[stream.pool].cluster
            assert broker.topics.get(stream.name) is live
            found = await broker.storage.logs.read(live.partitions[0].stream, 0, 1_000)
            assert len(found) == self.records[stream.id]
        assert alive == sum(len(broker.topics.names()) for _, broker in self.world.clusters)


def _comparable(stream: StreamRecord) -> StreamRecord:
    """What a deletion changes on its own, when it is noticed and not asked for, does not count."""
    if is_deleted(stream):
        return msgspec.structs.replace(stream, phase=None, version=0)
    return stream


def test_whatever_dies_nothing_acknowledged_is_lost(shared_valkey: RedisServer) -> None:
    machine = type("OnThisRedis", (Machine,), {"url": shared_valkey.url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            # To shrink forty steps would take minutes.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
        ),
    )
