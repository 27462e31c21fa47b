"""Virtual clusters: several brokers over one storage, each with topics and groups of its own.

The default cluster is always there and is what a client sees that chooses none. Others are made by name, such as one
for each stream pool of the OCI API. Producer ids, the budget of cached tails and the advertised addresses are common.
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
from headrace.broker.ports import ClusterStorage, DocumentStorage, Storage
from headrace.broker.runtime.clock import Clock
from headrace.broker.services import Services
from headrace.broker.topics.live import LiveTopic, OtherClusters, StreamName, TopicListener
from headrace.broker.topics.reconcile import take_move
from headrace.broker.topics.table import Progress, TopicTable
from headrace.groups.model import DropGroup
from headrace.membership.view import Leader
from headrace.security.access.required_acls import SERVER
from headrace.topics.errors import UnknownTopic
from headrace.topics.model import Topic
from headrace.topics.native import adopted

DEFAULT = SERVER
KIND = "clusters"
"""The kind of documents: cluster -> its settings."""
MOVED_TOPICS = "moved-topics"
"""The kind of the documents that name topics that have left a cluster with their streams.

They have nothing but an id, and are written before the move: a name too many does no harm.
"""

ClusterStreamName = Callable[[str, str, int, str], str]
"""(cluster, topic, partition, generation) -> Redis key of a new partition's stream."""
Save = Callable[[Mapping[tuple[str, str], bytes | None]], Awaitable[object]]
"""Stores documents: that of a lock, where more than them is decided under it. Raises as `DocumentStorage.save`."""

_NAME = re.compile(r"[a-zA-Z0-9._-]+")
_settings = msgspec.json.Decoder(dict[str, str])
_log = structlog.get_logger("headrace.broker")


class UnknownCluster(LookupError):
    """No virtual cluster of that name."""


class ClusterListener:
    """Hears of the topics of all virtual clusters, and of clusters that go; it does nothing by itself."""

    def topic_added(self, broker: Broker, live: LiveTopic) -> None:
        """A topic is there from now on, in this broker: loaded, created, or moved there."""

    def topic_deleted(self, broker: Broker, live: LiveTopic) -> None:
        """This broker itself has deleted a topic. `topic_removed` comes next."""

    def topic_removed(self, broker: Broker, live: LiveTopic) -> None:
        """A topic is nowhere any more, as far as this broker knows."""

    def cluster_removed(self, name: str) -> None:
        """A virtual cluster was deleted."""


class VirtualClusters:
    """Every virtual cluster of this server."""

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
        """Put the default cluster together; `start` loads what is stored.

        Args:
            storage: where everything is kept.
            settings: the server's settings; clusters may have some of their own over them.
            clock: the time.
            cluster_id: what the default cluster tells as its id.
            stream_of: names the Redis key of a new partition's stream.
            parts: what the clusters share; None: parts for a server without archives that is alone.
            listeners: hear of topics and clusters, in this order; `subscribe` adds those that need the clusters first.
        """
        self.clock = clock
        self.settings = settings
        self._storage = storage
        self._stream_of = stream_of
        self._parts = parts = parts or Services(storage.documents, settings, clock)
        self.reads, self.lane, self.decompression = parts.reads, parts.lane, parts.decompression
        self.ownership, self.leaders = parts.ownership, parts.leaders
        self.access, self.quotas = parts.access, parts.quotas
        self._moved: set[str] = set()
        self._changes = asyncio.Lock()
        self._brokers: dict[str, Broker] = {}
        self._own: dict[str, dict[str, str]] = {}
        self.listeners = list(listeners)
        self.default = self._open(DEFAULT, storage, cluster_id)

    def subscribe(self, listener: ClusterListener) -> None:
        """Have one more listener hear of what comes from now on, after the others."""
        self.listeners.append(listener)

    async def start(self, progress: Progress | None = None) -> None:
        """Load every cluster's topics and groups, the default one's first; `progress` is told of that."""
        await self.access.load()
        await self.quotas.load()
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

    def _sources(self, cluster: str, topic: Topic) -> set[str]:
        """The clusters whose keys a topic's streams have: it has moved from there, also where no document says so."""
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
        """Take over which clusters there are, and their settings, from what another broker has stored."""
        async with self._changes:
            # What is known of moves stays, whatever has become of the documents: a name too many costs a suffix.
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
        """Hand topics over that another broker has moved to another cluster, open as they are.

        Of whoever took one for deleted first, and for new where it is, clients would hear that it does not exist.

        `places`: (cluster, topic) of reported changes; None: any topic may have changed. Raises
        StorageUnavailable.
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
        """Another broker has deleted a cluster, and has seen to all that it had."""
        broker = self._brokers.pop(name)
        self._moved -= self._moved_from(name)
        for live in broker.topics:
            await broker.topics.dismiss(live)
        await broker.stop()
        for listener in self.listeners:
            listener.cluster_removed(name)

    def view_changed(self) -> None:
        """Go by another view from now on."""
        for _, broker in self:
            broker.view_changed()

    async def hand_over(self) -> None:
        """Write down what the next owners would have to find out."""
        await asyncio.gather(*(broker.hand_over() for _, broker in self))

    def learn_leaders(self, told: Mapping[str, Leader]) -> None:
        """Brokers have opened logs: clients are told so from now on.

        Logs that no topic has are left out: it was deleted, or will be heard of first, and this is told behind it.
        """
        news = self.leaders.news(told)
        if news:
            for _, broker in self:
                for live in broker.topics:
                    for partition in live.partitions:
                        leader = news.get(partition.stream)
                        if leader is not None:
                            self.leaders.known[partition.stream] = leader
                            broker.topics.leading.hear(live.topic, partition)

    def republish(self, told: Mapping[str, Leader]) -> None:
        """Tell what this server has opened and Redis does not know any more, which has `told`."""
        for _, broker in self:
            for live in broker.topics:
                broker.topics.leading.republish(live.partitions, told)

    async def stop(self) -> None:
        """Stop all of them."""
        self.decompression.close()
        self.leaders.stop()
        # Each may wait for Redis for some seconds: not one after the other.
        await asyncio.gather(*(broker.stop() for broker in self._brokers.values()))
        if self._parts.archives is not None:
            await self._parts.archives.stop()

    def _open(self, name: str, storage: Storage, cluster_id: str) -> Broker:
        broker = Broker(
            storage,
            self._settings_of(name),
            self.clock,
            cluster_id=cluster_id,
            stream_of=self._namer(name),
            cluster=name,
            parts=self._parts,
            listen=partial(ClusterTopics, self),
            others=_Others(self, name),
            native_stream_of=self._namer(name, native=True),
        )
        if name != DEFAULT:
            broker.advertised = self.default.advertised
        self._brokers[name] = broker
        return broker

    async def has_moved(self, topic: str, stream: str) -> bool:
        """As `OtherClusters.has_moved`."""
        known = await readable(self._storage.documents, KIND, _own)
        if self.some_unreadable:
            # It may be in one of those. That it was deleted would have what is kept of it elsewhere removed.
            return True
        for name in (DEFAULT, *known):
            storage = self._storage if name == DEFAULT else self._storage.in_cluster(name)
            found = await storage.topics.find(topic)
            if found is not None and stream in found.streams:
                return True
        return False

    def _namer(self, cluster: str, *, native: bool = False) -> StreamName:
        def name(topic: str, topic_id: object, partition: int) -> str:
            # Where a topic has moved on with its streams, a new one of that name may not get the same keys. Where there
            # are other brokers no log ever does: one of them may still have something under way to the one before.
            used = self._may_have_moved(cluster, topic) or (self.ownership.shared and not native)
            generation = getattr(topic_id, "hex", "")[:12] if used else ""
            return self._stream_of(cluster, topic, partition, generation)

        return name

    def _may_have_moved(self, cluster: str, topic: str) -> bool:
        """Whether a topic of that name has left the cluster with its streams, or nobody can say."""
        entry = moved_topic(cluster, topic)
        return entry in self._moved or self._storage.documents.unreadable.hides(MOVED_TOPICS, entry)

    def _moved_from(self, cluster: str) -> set[str]:
        return {entry for entry in self._moved if entry.startswith(moved_topic(cluster, ""))}

    def _settings_of(self, name: str) -> BrokerSettings:
        return self.settings.overlaid(self._own.get(name, {}))

    # Look-ups

    def __iter__(self) -> Iterator[tuple[str, Broker]]:
        return iter(list(self._brokers.items()))

    def get(self, name: str) -> Broker:
        """Raises UnknownCluster."""
        try:
            return self._brokers[name]
        except KeyError:
            raise UnknownCluster(f"no virtual cluster {name!r}") from None

    def has(self, name: str) -> bool:
        """Whether a cluster is open here."""
        return name in self._brokers

    def holding(self, topic_id: UUID, expected: str) -> tuple[Broker, LiveTopic]:
        """The cluster that a topic is in by now, and the topic; `expected` is looked at first. Raises UnknownTopic."""
        for name in chain((expected,), self._brokers):
            broker = self._brokers.get(name)
            if broker is not None:
                with contextlib.suppress(UnknownTopic):
                    return broker, broker.topics.by_id(topic_id)
        raise UnknownTopic(f"no topic with id {topic_id}")

    def is_unreadable(self, name: str) -> bool:
        """Whether what is stored of a cluster cannot be read: then it may exist though it is not open here."""
        return self._storage.documents.unreadable.hides(KIND, name)

    @property
    def some_unreadable(self) -> bool:
        """Whether there may be clusters that are not open here since they cannot be read."""
        return any(name != DEFAULT for name in self._storage.documents.unreadable.names(KIND))

    def settings_of(self, name: str) -> Mapping[str, str]:
        """What is set on a cluster itself, by Kafka's names."""
        return self._own.get(name, {})

    # Changes

    async def create(self, name: str, own: Mapping[str, str], save: Save | None = None) -> Broker:
        """Make a cluster, stored when this returns; one that exists gets the settings.

        Args:
            name: letters, digits, `.`, `_` and `-`.
            own: settings over the server's, by Kafka's names, such as `num.partitions`.
            save: stores that; None: without a lock.

        Raises:
            InvalidSetting, ValueError: of the name; StorageUnavailable, StorageFull, Fenced; what `save` raises.
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
        """Delete a cluster with its topics and groups; nothing to do when it is not there. The default one stays.

        A deletion that was cut short is continued by calling this again, after a restart too. `save`: as for `create`.

        Raises:
            ValueError: it is the default cluster; StorageUnavailable, Fenced; what `save` raises.
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
            await broker.stop()
            for group in await broker.storage.groups.load():
                await broker.storage.groups.save(group.name, [DropGroup()])
            await self.access.forget(name)
            await self.quotas.forget(name)
            # Its names never come back, nor do the keys that were to be avoided.
            gone = self._moved_from(name)
            await save({(KIND, name): None, **{(MOVED_TOPICS, each): None for each in gone}})
            self._moved -= gone
            del self._brokers[name]
            self._own.pop(name, None)
            _log.info("virtual cluster deleted", cluster=name)
            for listener in self.listeners:
                listener.cluster_removed(name)

    async def reset(self) -> None:
        """Delete every topic, every group, and every cluster but the default one, which loses its settings.

        Raises StorageUnavailable, Fenced.
        """
        for name in tuple(self._brokers):
            if name != DEFAULT:
                await self.delete(name)
        for live in tuple(self.default.topics):
            await self.default.topics.delete(live.topic.name)
        await self.default.groups.drop_all()
        if self._own.get(DEFAULT):
            await self.create(DEFAULT, {})

    async def move(self, topic: str, source: str, target: str, save: Save | None = None) -> None:
        """Move a topic to another cluster: its records, id and name stay, positions of groups in it do not.

        `save`: as for `create`.

        Raises:
            UnknownCluster, UnknownTopic; TopicExists: the target has a topic of that name;
            StorageUnavailable, Fenced; what `save` raises.
        """
        if source == target:
            return
        await to_the_end(self._move(topic, source, target, save or self._storage.documents.save))

    async def _move(self, topic: str, source: str, target: str, save: Save) -> None:
        async def store(moving: Topic) -> None:
            # Before the move: a name too many costs a suffix, one too few would cost a later topic its records.
            entry = moved_topic(source, topic)
            await save({(MOVED_TOPICS, entry): b""})
            self._moved.add(entry)
            await self._storage.move_topic(moving, source, target)

        async with self._changes:
            topics = self.get(target).topics
            await self.get(source).topics.move(topic, topics, store)
            # To a broker that had not heard of one of the clusters it is a new one, and it forgets who has opened its
            # logs; these stay open.
            if topics.has(topic):  # else somebody was fast to delete it
                topics.leading.republish(topics.get(topic).partitions, {})


def _own(name: str, text: bytes) -> dict[str, str]:
    """A cluster's settings. Raises ValueError: they, or its name, cannot be what a server has stored."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be the name of a virtual cluster")
    own = _settings.decode(text)
    BrokerSettings.of(own)
    return own


def moved_topic(cluster: str, topic: str) -> str:
    """The id of the document that tells of a topic that was in a cluster."""
    return f"{cluster}/{topic}"


async def load_moved_topics(documents: DocumentStorage) -> set[str]:
    """All that have moved. Raises StorageUnavailable."""
    return set(await readable(documents, MOVED_TOPICS, _moved_topic_name))


def _moved_topic_name(name: str, _: bytes) -> str:
    name.encode()  # raises ValueError for what is no text
    return name


class ClusterTopics(TopicListener):
    """Passes changes of topics to the listeners of all virtual clusters, with the broker of the topic."""

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
        """See `ClusterListener.topic_removed`. No broker leads its logs any more."""
        for listener in self._clusters.listeners:
            listener.topic_removed(self._broker, live)
        self._clusters.leaders.forget(live.topic.streams)


class _Others(OtherClusters):
    """What one virtual cluster sees of the others."""

    def __init__(self, clusters: VirtualClusters, own: str) -> None:
        self._clusters = clusters
        self._own = own

    def _tables(self) -> Iterator[TopicTable]:
        return (broker.topics for name, broker in self._clusters if name != self._own)

    def topics(self) -> Iterable[Topic]:
        """As `OtherClusters.topics`."""
        return (live.topic for table in self._tables() for live in table)

    def partitions(self) -> int:
        """As `OtherClusters.partitions`."""
        return sum(table.partitions for table in self._tables())

    async def has_moved(self, topic: str, stream: str) -> bool:
        """As storage says."""
        return await self._clusters.has_moved(topic, stream)
