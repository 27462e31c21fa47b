"""A server over a real Valkey and a clock that is moved by hand, restarted as often as a test likes."""

import asyncio
from collections.abc import Sequence

import redis.asyncio
from tests.harness.basket import Basket

from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.instances import GroupCursor, Start, StartKind
from headrace.broker.topics.live import LiveTopic
from headrace.groups.model import GroupChange
from headrace.records.build import build
from headrace.storage.groups import RedisGroups
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.errors import StorageUnavailable
from headrace.topics.model import Appended

BEGINNING = Start(StartKind.TRIM_HORIZON)
TIMEOUT_MS = 30_000
HOUR_MS = 3_600_000
MOST_OFFSETS = 50


class FailingGroups(RedisGroups):
    """A storage of groups that can refuse or delay writes, and counts them."""

    refuses = False
    saved = 0
    gate: asyncio.Event | None = None

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.refuses:
            raise StorageUnavailable("the connection was lost")
        self.saved += 1
        await super().save(group, changes, view)


class World:
    """One server after the other over the same Valkey."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.epoch = 0
        self.clock = ManualClock()
        self.broker: Broker
        self.storage: RedisStorage
        self.groups: FailingGroups

    async def start(self) -> None:
        self.epoch += 1
        link = redis.asyncio.from_url(self.url)
        await link.set(Keyspace().epoch, self.epoch)
        self.storage = storage = await RedisStorage.open(self.url, link, self.epoch)
        self.groups = storage.groups = FailingGroups(storage.scripts, Keyspace(), storage.fence)
        self.broker = Broker(
            storage,
            BrokerSettings.of({}),
            self.clock,
            cluster_id="c",
            stream_of=lambda name, _, index: Keyspace().stream(name, index),
        )
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.stop()
        await self.storage.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def topic(self, partitions: int = 1, name: str = "flights") -> LiveTopic:
        return await self.broker.topics.create(name, partitions, {"retention.ms": str(24 * HOUR_MS)})

    @property
    def flights(self) -> LiveTopic:
        return self.broker.topics.get("flights")

    async def put(self, count: int, partition: int = 0, *, codec: int = 0, topic: str = "flights") -> None:
        """One batch of `count` records with the present time."""
        first = self.broker.topics.partition(topic, partition).log_end
        made = [(None, b"%d" % number, self.clock.now_ms(), ()) for number in range(first, first + count)]
        done: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()
        self.broker.append(topic, partition, build(made, codec=codec), done.set_result)
        assert isinstance(await done, Appended)

    async def cursor(self, instance: str = "a", start: Start = BEGINNING, *, auto: bool = True) -> GroupCursor:
        return await self.broker.instances.create_cursor(self.flights, "g", instance, start, TIMEOUT_MS, auto)

    async def get(self, cursor: GroupCursor, limit: int = 10**9) -> tuple[Basket, GroupCursor]:
        basket = Basket(limit)
        return basket, await self.broker.instances.get(self.flights, cursor, basket, MOST_OFFSETS)

    async def silence(self) -> None:
        """All members have left, and Redis knows it."""
        self.clock.advance(TIMEOUT_MS + 1)
        while any(each.instance for each in await self.broker.instances.describe(self.flights, "g")):
            await asyncio.sleep(0.001)
