"""Virtual clusters: several brokers over one storage, each with separate topics and groups.

The default cluster always exists and serves clients that choose none. Others have names, such as one per stream pool of
the OCI API. Producer ids, cache budget and advertised addresses are common.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from uuid import UUID

import msgspec
import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.broker import Broker
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.documents import readable
from headrace.broker.other_clusters import ServerClusters
from headrace.broker.ports import ClusterStorage, DocumentStorage, Storage
from headrace.broker.runtime.clock import Clock
from headrace.broker.services import Services
from headrace.broker.topics.live import LiveTopic, StreamName, TopicListener
from headrace.broker.topics.reconcile import take_move
from headrace.broker.topics.table import Progress
from headrace.groups.model import DropGroup
from headrace.membership.view import Leader
from headrace.security.access.required_acls import SERVER
from headrace.topics.errors import StorageUnavailable, UnknownTopic
from headrace.topics.model import Topic
from headrace.topics.native import adopted

DEFAULT = SERVER
KIND = "clusters"
"""Kind of the documents with clusters' settings."""
MOVED_TOPICS = "moved-topics"
"""Kind of the empty documents that name topics moved out of a cluster with their streams.

They are written before the move: an unnecessary name does no harm.
"""

ClusterStreamName = Callable[[str, str, int, str], str]
"""(Cluster, topic, partition, generation) -> Redis key of a new partition's stream."""
Save = Callable[[Mapping[tuple[str, str], bytes | None]], Awaitable[object]]
"""Stores documents, under a lock if more is decided there. Raises as `DocumentStorage.save`."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_settings = msgspec.json.Decoder(dict[str, str])
_log = structlog.get_logger("headrace.broker")


class UnknownCluster(LookupError):
    """No virtual cluster of that name."""


class ClusterListener:
    """Notified of topics and deletions of clusters. Does nothing by default."""

    def topic_added(self, broker: Broker, live: LiveTopic) -> None:
        """A topic was loaded, created, or moved to this broker."""

    def topic_deleted(self, broker: Broker, live: LiveTopic) -> None:
        """This broker has deleted a topic. `topic_removed` follows."""

    def topic_removed(self, broker: Broker, live: LiveTopic) -> None:
        """A topic no longer exists in any cluster, as far as known."""

    def cluster_removed(self, name: str) -> None:
        """A virtual cluster was deleted."""


class VirtualClusters:
    """All virtual clusters of this server."""

    def __init__(
        self,
        storage: ClusterStorage,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cluster_id: str,
        stream_of: ClusterStreamName,
        parts: Services | None = None,
        listeners: Iterable[ClusterListener] = (),
    ) -> None:
        """Create the default cluster; `start` loads stored data.

        `parts` are shared services (None: a single server without archives). Listeners are notified in order;
        `subscribe` adds those that need the clusters first.
        """
        self.clock = clock
        self.settings = settings
        self._storage = storage
        self._stream_of = stream_of
        self.services = parts = parts or Services(storage.documents, settings, clock)
        self.reads, self.lane, self.decompression = parts.reads, parts.lane, parts.decompression
        self.record_checker = parts.record_checker
        self.ownership, self.leaders = parts.ownership, parts.leaders
        self.access, self.quotas, self.group_configs = parts.access, parts.quotas, parts.group_configs
        self._moved: set[str] = set()
        self._changes = asyncio.Lock()
        self._complete = False
        """Whether the topics of all clusters have been loaded."""
        self._brokers: dict[str, Broker] = {}
        self._own: dict[str, dict[str, str]] = {}
        self.listeners = list(listeners)
        self.default = self._open(DEFAULT, storage, cluster_id)

    def explain_refusals(self, refusal: Callable[[], str]) -> None:
        """Have `refusal` return why the server accepts no records, empty while it does; see `Broker.check_writable`."""
        self.services.refusal = refusal

    def subscribe(self, listener: ClusterListener) -> None:
        """Add a listener after the others."""
        self.listeners.append(listener)

    async def start(self, progress: Progress | None = None) -> None:
        """Load every cluster's topics and groups, the default one first."""
        await self.access.load()
        await self.quotas.load()
        await self.group_configs.load()
        self._moved = await load_moved_topics(self._storage.documents)
        self._own = await readable(self._storage.documents, KIND, _own)
        self.default.configure(self._settings_of(DEFAULT))
        await self.default.start(progress)
        for name in self._own:
            if name != DEFAULT:
                await self._open(name, self._storage.in_cluster(name), name).start()
        for name, broker in self:
            for live in broker.topics:
                self._moved.update(moved_topic(each, live.topic.name) for each in self._sources(name, live.topic))
        self._complete = True

    def _sources(self, cluster: str, topic: Topic) -> set[str]:
        found: set[str] = set()
        foreign = adopted(topic)
        for index, stream in enumerate(topic.streams):
            if "@" in stream or index in foreign or stream == self._stream_of(cluster, topic.name, index, ""):
                continue
            for other in (*found, *self._brokers):
                if stream == self._stream_of(other, topic.name, index, ""):
                    found.add(other)
                    break
        return found

    async def refresh_clusters(self) -> None:
        """Load clusters and their settings after a change by another broker."""
        async with self._changes:
            # Keep known moves whatever happens: an unnecessary name only costs a suffix.
            self._moved |= await load_moved_topics(self._storage.documents)
            self._own = await readable(self._storage.documents, KIND, _own)
            for name in tuple(self._brokers):
                if name != DEFAULT and name not in self._own and not self.is_unreadable(name):
                    await self._forget(name)
            for name in self._own:
                if name in self._brokers:
                    self._brokers[name].configure(self._settings_of(name))
                else:
                    await self._open(name, self._storage.in_cluster(name), name).start()

    async def take_moves(self, places: Iterable[tuple[str, str]] | None = None) -> None:
        """Hand over topics that another broker has moved to another cluster, with their logs open.

        Otherwise clients would see an unknown topic.

        `places`: changed (cluster, topic). None: any. Raises StorageUnavailable.
        """
        if places is None:
            places = [(name, live.topic.name) for name, broker in self for live in broker.topics]
        for source, topic in places:
            if source in self._brokers and self._may_have_moved(source, topic):
                async with self._changes:
                    await self._take_move(topic, source)

    async def _take_move(self, topic: str, source: str) -> None:
        topics = self.get(source).topics
        if not topics.has(topic):
            return
        stored = await topics.storage.topics.find(topic)
        if stored is not None and stored.id == topics.get(topic).topic.id:
            return
        for name, broker in self:
            if name != source and await take_move(topic, topics, broker.topics):
                return

    async def _forget(self, name: str) -> None:
        broker = self._brokers.pop(name)
        self._moved -= self._moved_from(name)
        for live in broker.topics:
            await broker.topics.dismiss(live)
        await broker.stop()
        for listener in self.listeners:
            listener.cluster_removed(name)

    def view_changed(self) -> None:
        """See `Broker.view_changed`."""
        for _, broker in self:
            broker.view_changed()

    async def hand_over(self) -> None:
        """See `Broker.hand_over`."""
        await asyncio.gather(*(broker.hand_over() for _, broker in self))

    def learn_leaders(self, published: Mapping[str, Leader]) -> None:
        """Apply leaders that brokers have published, for clients.

        Logs without topic are skipped: deleted, or not known yet, then published again.
        """
        news = self.leaders.news(published)
        if news:
            for _, broker in self:
                for live in broker.topics:
                    for partition in live.partitions:
                        leader = news.get(partition.stream)
                        if leader is not None:
                            self.leaders.known[partition.stream] = leader
                            broker.topics.leading.hear(live.topic, partition)

    def republish(self, published: Mapping[str, Leader]) -> None:
        """Publish this server's leaderships that Redis has lost: those not in `published`."""
        for _, broker in self:
            for live in broker.topics:
                broker.topics.leading.republish(live.partitions, published)

    async def stop(self) -> None:
        """Stop all clusters."""
        for broker in self._brokers.values():
            broker.dead_letters.stop()
        self.decompression.close()
        self.leaders.stop()
        # Concurrently: each may wait for Redis for seconds.
        await asyncio.gather(*(broker.stop() for broker in self._brokers.values()))
        if self.services.archives is not None:
            await self.services.archives.stop()

    def _open(self, name: str, storage: Storage, cluster_id: str) -> Broker:
        broker = Broker(
            storage,
            self._settings_of(name),
            self.clock,
            cluster_id=cluster_id,
            stream_of=self._namer(name),
            cluster=name,
            parts=self.services,
            listen=partial(ClusterTopics, self),
            others=ServerClusters(self, name),
            native_stream_of=self._namer(name, native=True),
        )
        if name != DEFAULT:
            broker.advertised = self.default.advertised
        self._brokers[name] = broker
        return broker

    async def has_moved(self, topic: str, stream: str) -> bool:
        """See `OtherClusters.has_moved`."""
        known = await readable(self._storage.documents, KIND, _own)
        if self.some_unreadable:
            # An unreadable cluster may have it. A false deletion would remove its data.
            return True
        for name in (DEFAULT, *known):
            storage = self._storage if name == DEFAULT else self._storage.in_cluster(name)
            found = await storage.topics.find(topic)
            if found is not None and stream in found.streams:
                return True
        return False

    def _namer(self, cluster: str, *, native: bool = False) -> StreamName:
        def name(topic: str, topic_id: object, partition: int) -> str:
            # A new topic must not reuse the keys of one that moved with its streams. With other brokers, no log reuses
            # keys: writes to the old one may be in flight.
            used = self._may_have_moved(cluster, topic) or (self.ownership.shared and not native)
            generation = getattr(topic_id, "hex", "")[:12] if used else ""
            return self._stream_of(cluster, topic, partition, generation)

        return name

    def _may_have_moved(self, cluster: str, topic: str) -> bool:
        entry = moved_topic(cluster, topic)
        return entry in self._moved or self._storage.documents.unreadable.hides(MOVED_TOPICS, entry)

    def _moved_from(self, cluster: str) -> set[str]:
        return {entry for entry in self._moved if entry.startswith(moved_topic(cluster, ""))}

    def _settings_of(self, name: str) -> BrokerSettings:
        return self.settings.overlaid(self._own.get(name, {}))

    def __iter__(self) -> Iterator[tuple[str, Broker]]:
        return iter(list(self._brokers.items()))

    def get(self, name: str) -> Broker:
        """Return a cluster. Raises UnknownCluster."""
        try:
            return self._brokers[name]
        except KeyError:
            raise UnknownCluster(f"no virtual cluster {name!r}") from None

    def has(self, name: str) -> bool:
        """Whether a cluster is open here."""
        return name in self._brokers

    def holding(self, topic_id: UUID, expected: str) -> tuple[Broker, LiveTopic]:
        """Return a topic's current cluster and the topic, trying `expected` first. Raises UnknownTopic."""
        for name in chain((expected,), self._brokers):
            broker = self._brokers.get(name)
            if broker is not None:
                with contextlib.suppress(UnknownTopic):
                    return broker, broker.topics.by_id(topic_id)
        raise UnknownTopic(f"no topic with id {topic_id}")

    def find(self, topic_id: UUID) -> LiveTopic | None:
        """See `OtherClusters.find`."""
        with contextlib.suppress(UnknownTopic):
            return self.holding(topic_id, DEFAULT)[1]
        names = self._storage.documents.unreadable.names
        kinds = ("topics" if name == DEFAULT else f"topics:{name}" for name in self._brokers)
        if self.changing or any(names(kind) for kind in kinds):
            raise StorageUnavailable(f"it is not known whether the topic with id {topic_id} was deleted")
        return None

    def is_unreadable(self, name: str) -> bool:
        """Whether the cluster is unreadable, so that it may exist unopened."""
        return self._storage.documents.unreadable.hides(KIND, name)

    @property
    def changing(self) -> bool:
        """Whether a cluster or a topic may be added, moved or deleted now, or is not known."""
        return not self._complete or self._changes.locked() or self.some_unreadable

    @property
    def some_unreadable(self) -> bool:
        """Whether unreadable clusters may exist."""
        return any(name != DEFAULT for name in self._storage.documents.unreadable.names(KIND))

    def settings_of(self, name: str) -> Mapping[str, str]:
        """Return a cluster's own settings."""
        return self._own.get(name, {})

    async def create(self, name: str, own: Mapping[str, str], save: Save | None = None) -> Broker:
        """Create and store a cluster, or change the settings of an existing one.

        `own` overrides the server's settings. `save` stores documents; None: without a lock.

        Raises:
            InvalidSetting, ValueError: invalid name; StorageUnavailable, StorageFull, Fenced; errors of `save`.
        """
        return await to_the_end(self._create(name, dict(own), save or self._storage.documents.save))

    async def _create(self, name: str, own: dict[str, str], save: Save) -> Broker:
        async with self._changes:
            BrokerSettings.of(own)
            storage = self._storage if name == DEFAULT else self._storage.in_cluster(name)
            await save({(KIND, name): msgspec.json.encode(own, order="sorted")})
            self._own[name] = own
            broker = self._brokers.get(name)
            if broker is not None:
                broker.configure(self._settings_of(name))
                return broker
            broker = self._open(name, storage, name)
            await broker.start()
            return broker

    async def delete(self, name: str, save: Save | None = None) -> None:
        """Delete a cluster with its topics and groups, if it exists. Call again after an interruption.

        Raises:
            ValueError: it is the default cluster; StorageUnavailable, Fenced; errors of `save`.
        """
        if name == DEFAULT:
            raise ValueError("the default cluster cannot be deleted")
        await to_the_end(self._delete(name, save or self._storage.documents.save))

    async def _delete(self, name: str, save: Save) -> None:
        async with self._changes:
            broker = self._brokers.get(name)
            if broker is None:
                return
            await broker.topics.delete_all()
            # Topics that have moved to other clusters would never learn the outcome.
            await broker.transactions.end_all()
            await broker.stop()
            for group in await broker.storage.groups.load():
                await broker.storage.groups.save(group.name, [DropGroup()])
            await broker.transactions.coordinator.drop_all()
            await self.access.forget(name)
            await self.quotas.forget(name)
            await self.group_configs.forget(name)
            # The name is never used again.
            gone = self._moved_from(name)
            await save({(KIND, name): None, **{(MOVED_TOPICS, each): None for each in gone}})
            self._moved -= gone
            del self._brokers[name]
            self._own.pop(name, None)
            _log.info("virtual cluster deleted", cluster=name)
            for listener in self.listeners:
                listener.cluster_removed(name)

    async def reset(self) -> None:
        """Delete every topic, group, and cluster but the default one, which loses its settings.

        Raises StorageUnavailable, Fenced.
        """
        for name in tuple(self._brokers):
            if name != DEFAULT:
                await self.delete(name)
        for live in tuple(self.default.topics):
            await self.default.topics.delete(live.topic.name)
        await self.default.groups.drop_all()
        await self.group_configs.forget(DEFAULT)
        await self.default.transactions.coordinator.drop_all()
        if self._own.get(DEFAULT):
            await self.create(DEFAULT, {})

    async def move(self, topic: str, source: str, target: str, save: Save | None = None) -> None:
        """Move a topic with its records, id and name to another cluster. Committed offsets are lost.

        Raises:
            UnknownCluster, UnknownTopic; TopicExists: the target has a topic of that name;
            StorageUnavailable, Fenced; errors of `save`.
        """
        if source == target:
            return
        await to_the_end(self._move(topic, source, target, save or self._storage.documents.save))

    async def _move(self, topic: str, source: str, target: str, save: Save) -> None:
        async def store(moving: Topic) -> None:
            # Before the move: an unnecessary name costs a suffix, a missing one would cost a later topic its records.
            entry = moved_topic(source, topic)
            await save({(MOVED_TOPICS, entry): b""})
            self._moved.add(entry)
            await self._storage.move_topic(moving, source, target)

        async with self._changes:
            topics = self.get(target).topics
            await self.get(source).topics.move(topic, topics, store)
            # A broker that did not know a cluster takes it for a new topic and forgets its logs' leaders.
            if topics.has(topic):  # else it was deleted already
                topics.leading.republish(topics.get(topic).partitions, {})


def _own(name: str, text: bytes) -> dict[str, str]:
    """Parse a cluster's settings. Raises ValueError for settings or a name that no server stores."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be the name of a virtual cluster")
    own = _settings.decode(text)
    BrokerSettings.of(own)
    return own


def moved_topic(cluster: str, topic: str) -> str:
    """Return the id of the document for a topic that left a cluster."""
    return f"{cluster}/{topic}"


async def load_moved_topics(documents: DocumentStorage) -> set[str]:
    """Return all moved topics. Raises StorageUnavailable."""
    return set(await readable(documents, MOVED_TOPICS, _moved_topic_name))


def _moved_topic_name(name: str, _: bytes) -> str:
    name.encode()  # raises ValueError for invalid text
    return name


class ClusterTopics(TopicListener):
    """Passes changes of topics to all listeners."""

    def __init__(self, clusters: VirtualClusters, broker: Broker) -> None:
        self._clusters = clusters
        self._broker = broker

    def added(self, live: LiveTopic) -> None:
        """See `ClusterListener.topic_added`."""
        for listener in self._clusters.listeners:
            listener.topic_added(self._broker, live)

    def deleted(self, live: LiveTopic) -> None:
        """See `ClusterListener.topic_deleted`."""
        for listener in self._clusters.listeners:
            listener.topic_deleted(self._broker, live)

    def removed(self, live: LiveTopic) -> None:
        """See `ClusterListener.topic_removed`. No broker leads its logs."""
        for listener in self._clusters.listeners:
            listener.topic_removed(self._broker, live)
        self._clusters.leaders.forget(live.topic.streams)
