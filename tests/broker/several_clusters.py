"""One server's virtual clusters over a real Redis, restarted as often as a test likes."""

import redis.asyncio

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import CacheBudget
from headrace.broker.services import Services
from headrace.broker.topics.live import LiveTopic
from headrace.broker.virtual_clusters import ClusterListener, VirtualClusters
from headrace.records.build import build
from headrace.storage.layout.keys import Keyspace
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock
from headrace.topics.model import Appended


class Told(ClusterListener):
    """Writes down what it hears."""

    def __init__(self, told: list[tuple[str, str]]) -> None:
        self._told = told

    def topic_added(self, broker: Broker, live: LiveTopic) -> None:
        self._told.append(("added", f"{broker.cluster}/{live.topic.name}"))

    def topic_removed(self, broker: Broker, live: LiveTopic) -> None:
        self._told.append(("removed", f"{broker.cluster}/{live.topic.name}"))

    def cluster_removed(self, name: str) -> None:
        self._told.append(("cluster removed", name))


class World:
    """A Redis, and one server's clusters after the other on it."""

    def __init__(self, url: str, given: dict[str, str] | None = None) -> None:
        self.url = url
        self.given = given or {}
        self.epoch = 0
        self.cache = CacheBudget(1 << 20)
        self.clusters: VirtualClusters
        self.clock: ManualClock
        self.storage: RedisStorage
        self.told: list[tuple[str, str]] = []

    async def start(self, ownership: Ownership | None = None) -> VirtualClusters:
        self.epoch += 1
        link = redis.asyncio.from_url(self.url)
        await link.set(Keyspace().epoch, self.epoch)
        self.storage = await RedisStorage.open(self.url, link, self.epoch)
        settings, clock = BrokerSettings.of(self.given), ManualClock()
        self.clock = clock
        self.clusters = VirtualClusters(
            self.storage,
            settings,
            clock,
            cluster_id="c",
            stream_of=lambda cluster, *place: Keyspace(cluster=cluster).stream(*place),
            parts=Services(self.storage.documents, settings, clock, cache=self.cache, ownership=ownership),
            listeners=[Told(self.told)],
        )
        await self.clusters.start()
        return self.clusters

    async def restart(self, ownership: Ownership | None = None) -> VirtualClusters:
        await self.stop()
        return await self.start(ownership)

    async def stop(self) -> None:
        await self.clusters.stop()
        await self.storage.close()


async def append(broker: Broker, topic: str, value: bytes) -> int:
    answers: list[Appended | Exception] = []
    broker.append(topic, 0, build([(None, value, 1, ())]), answers.append)
    await broker.storage.documents.load("nothing")  # behind it on the same connection
    (answer,) = answers
    assert isinstance(answer, Appended)
    return answer.base_offset


async def stored(broker: Broker, topic: str) -> int:
    return len(await broker.storage.logs.read(broker.topics.partition(topic, 0).stream, 0, 1_000))
