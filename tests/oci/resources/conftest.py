"""A server's clusters and its catalog of resources, on a Redis and a clock moved by hand; started again at will."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio
from tests.harness.redis import RedisServer

from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.virtual_clusters import VirtualClusters
from headrace.oci import ocids
from headrace.oci.resources.catalog import Catalog
from headrace.oci.resources.records import PoolRecord, Record, StreamRecord
from headrace.oci.settings import OciSettings
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock

COMPARTMENT = "ocid1.compartment.oc1..here"


class World:
    """One server after the other over the same Redis."""

    storage_class = RedisStorage

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self.epoch = 0
        self.settings: dict[str, str] = {}
        self.clusters: VirtualClusters
        self.catalog: Catalog
        self.storage: RedisStorage

    async def start(self, **settings: object) -> Catalog:
        self.settings |= {f"oci.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
        self.epoch += 1
        link = redis.asyncio.from_url(self.url)
        await link.set(Keyspace().epoch, self.epoch)
        self.storage = await self.storage_class.open(self.url, link, self.epoch)
        self.clusters = VirtualClusters(
            self.storage,
            BrokerSettings.of({}),
            self.clock,
            cluster_id="c",
            stream_of=lambda cluster, *place: Keyspace(cluster=cluster).stream(*place),
        )
        await self.clusters.start()
        self.catalog = Catalog(self.clusters, OciSettings.of(self.settings))
        self.catalog.documents.patience_s = 0  # a storage that fails is dead here, unless a test says otherwise
        await self.catalog.start()
        return self.catalog

    async def stop(self) -> None:
        await self.catalog.streams.settle()
        await self.catalog.stop()
        await self.clusters.stop()
        await self.storage.close()

    async def restart(self, **settings: object) -> Catalog:
        await self.stop()
        return await self.start(**settings)

    @property
    def default(self) -> Broker:
        return self.clusters.default

    async def stream(self, name: str = "s", **fields: Any) -> StreamRecord:
        """A new stream of one partition."""
        given = {"compartment": COMPARTMENT, "pool_id": None, "freeform_tags": {}, "defined_tags": {}} | fields
        if given["pool_id"] is not None:
            given["compartment"] = None
        partitions = given.pop("partitions", 1)
        record, _ = await self.catalog.create_stream(name, partitions, given.pop("hours", 24), **given)
        return record

    async def pool(self, name: str = "p", kafka: dict[str, str] | None = None, **fields: Any) -> PoolRecord:
        """A new pool."""
        record, _ = await self.catalog.create_pool(None, name, COMPARTMENT, kafka or {}, **fields)
        return record

    def stream_id(self, record: StreamRecord) -> str:
        return ocids.make(ocids.STREAM, "local", record.id)

    def pool_id(self, record: PoolRecord) -> str:
        return ocids.make(ocids.STREAM_POOL, "local", record.id)

    def state(self, record: Record) -> str:
        """The state of what is kept under the record's id now."""
        if isinstance(record, StreamRecord):
            return self.catalog.state_of(self.catalog.streams.get(self.stream_id(record)))
        assert isinstance(record, PoolRecord)
        return self.catalog.state_of(self.catalog.pools.get(self.pool_id(record)))


StartWorld = Callable[..., Any]


@pytest.fixture
async def world(any_redis: RedisServer) -> AsyncIterator[World]:
    async with redis.asyncio.from_url(any_redis.url) as link:
        await link.flushall()
    world = World(any_redis.url)
    await world.start()
    yield world
    await world.stop()
