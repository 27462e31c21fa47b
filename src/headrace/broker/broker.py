"""The broker: topics, groups and their timers, for every API."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from headrace.aio.tasks import end
from headrace.broker.admin.users import Users
from headrace.broker.brokers.leader_reader import RemotePartitionReader
from headrace.broker.brokers.leadership import Leadership
from headrace.broker.config.keys import KEY_PREFIX
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.cluster_transactions import ClusterTransactions
from headrace.broker.coordinator.coordination import Coordination
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.coordinator.instances import Instances
from headrace.broker.coordinator.late_transactions import LateTransactions, keep_checking
from headrace.broker.coordinator.subscribed_topics import BrokerSubscribedTopics
from headrace.broker.fetch import Wakeups
from headrace.broker.native.adoption import adopt
from headrace.broker.native.conversion import NativeGroupOffsets, convert
from headrace.broker.native.groups import NativeGroups
from headrace.broker.native.shares import StreamShares
from headrace.broker.native.stream_manager import StreamManager
from headrace.broker.partition.leader import LeaderPartition
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.producer_snapshots import SnapshotSchedule
from headrace.broker.partition.source import UNCOMMITTED, Isolation, Source
from headrace.broker.partition.timestamps import FoundOffset, Searcher
from headrace.broker.ports import Storage, TopicStorage
from headrace.broker.runtime.clock import Clock
from headrace.broker.services import Services
from headrace.broker.sharing.dead_letters import DeadLetterTopics
from headrace.broker.sharing.table import ShareTable
from headrace.broker.topics import retention
from headrace.broker.topics.cleaner import Cleaner, keep_cleaning
from headrace.broker.topics.internal import consumer_offsets
from headrace.broker.topics.live import LiveTopic, OtherClusters, StreamName, TopicListener, not_for_clients
from headrace.broker.topics.log_manager import LogManager
from headrace.broker.topics.offline import OfflinePartitions
from headrace.broker.topics.reconcile import refresh
from headrace.broker.topics.table import Progress, TopicTable
from headrace.groups.events import DropTopic
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.topics.config import resolve
from headrace.topics.errors import InvalidConfig, StorageUnavailable, UnknownTopic
from headrace.topics.model import AppendDone, Topic, check_name, is_reserved
from headrace.topics.rejected_batches import RejectedBatches
from headrace.topics.transactions import OpenTransaction
from headrace.transactions.model import PartitionId

# Producer ids: unique for ever, allocated in blocks.
BLOCK = 1_000
"""Ids per block, as in Kafka. Unused ones are lost at a stop; 2^63 exist."""


class ProducerIds:
    """Allocates producer ids."""

    def __init__(self, storage: TopicStorage) -> None:
        self._storage = storage
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """Return a unique id. Raises StorageUnavailable, StorageFull, Fenced."""
        async with self._refill:
            if self._next == self._end:
                self._next = await self._storage.allocate_producer_ids(BLOCK)
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1


class Broker:
    """One running broker over one storage."""

    def __init__(
        self,
        storage: Storage,
        settings: BrokerSettings,
        clock: Clock,
        *,
        cluster_id: str,
        stream_of: StreamName,
        native_stream_of: StreamName | None = None,
        cluster: str = "default",
        parts: Services | None = None,
        listen: Callable[["Broker"], TopicListener] | None = None,
        others: OtherClusters | None = None,
    ) -> None:
        """`start` loads stored data.

        `cluster_id` must be stable over restarts. `parts` are shared with other virtual clusters (None: the only one).
        The listener from `listen` is called after the broker's own.
        """
        others = others or OtherClusters()
        parts = parts or Services(storage.documents, settings, clock)
        self.settings = settings
        self.access = parts.access
        self.quotas = parts.quotas.of(cluster)
        self.group_configs = parts.group_configs.of(cluster)
        self.group_configs.set_defaults(settings.group_defaults)
        self.node_id = settings.node_id
        self.cluster_id = cluster_id
        self.cluster = cluster
        self.clock = clock
        self.storage = storage
        self.cache = parts.cache
        self.lane = parts.lane
        self.decompression = parts.decompression
        self.reads = parts.reads
        self.large_reads = parts.large_reads
        self.ownership = parts.ownership
        self.archives = parts.archives
        self._services = parts
        self._snapshots = SnapshotSchedule()
        self.transactions = ClusterTransactions(
            storage.transactions,
            parts.running,
            settings.transactions,
            self.new_producer_id,
            self.ownership,
            cluster,
            parts.lane,
            lambda: parts.transaction_peers,
        )
        leading = Leadership(
            self.ownership,
            parts.leaders,
            storage.topics,
            has_moved=others.has_moved,
            before_opening=None if self.archives is None else self._attach,
        )
        logs = LogManager(
            storage.logs,
            leading,
            clock,
            stream_of,
            self.cache,
            self._snapshots,
            self.reads,
            parts.producers,
            self.transactions.admit,
        )
        self.topics = TopicTable(
            storage,
            clock,
            settings.topic_defaults,
            logs,
            StreamManager(storage, leading, clock, native_stream_of or stream_of),
            leading,
            checker=parts.record_checker,
            most_partitions=settings.max_broker_partitions,
            listener=BrokerTopics(self, TopicListener() if listen is None else listen(self)),
            others=others,
        )
        self.native_groups = NativeGroups(
            storage.groups, settings.headrace_native_max_pending, self._committed, self.reads, self.lane
        )
        coordination = Coordination(self.ownership, cluster, self._topic_id, self._stored_topic_id)
        self.groups = GroupCoordinator(
            self.native_groups,
            parts.running,
            settings.groups,
            self._partition,
            coordination,
            parts.lane,
            parts.group_memory,
            self.transactions,
            BrokerSubscribedTopics(self.topics, storage.topics.find, self.access, cluster),
            self.group_configs,
        )
        self.dead_letters = DeadLetterTopics(
            self.topics.get, cluster, lambda: parts.append_batch, parts.decompression, clock
        )
        """Copies of records that share groups give up."""
        self.shares = ShareTable(
            self.topics,
            storage.shares,
            self.group_configs,
            settings.groups,
            parts.running,
            parts.lane,
            self.find_offset,
            StreamShares(clock, parts.large_reads, self.dead_letters),
            self.dead_letters,
        )
        self.transactions.connect(BrokerKnownTopics(self.topics, others), self.groups.request)
        self.instances = Instances(self.groups, self.searcher, self.source, parts.lane, parts.large_reads)
        self.advertised: dict[str, tuple[str, int]] = {}
        """Listener name -> advertised host and port."""
        self.users: Users | None = None
        """Users with passwords, in the default cluster only."""
        self.storage_url: str | None = None
        """URL of the storage without a password, for clients that may read it. None: not published."""
        self.unopened = OfflinePartitions(self.topics, self.clock)
        self._others = others
        self._late = LateTransactions(
            self.topics, clock, parts.lane, lambda: self.settings.transactions.max_timeout_ms, self._may_end
        )
        self.cleaner = Cleaner(self.topics, storage.logs, clock, settings)
        self._producer_ids = ProducerIds(storage.topics)
        self._tasks: list[asyncio.Task[None]] = []
        self.wakeups = Wakeups()
        """Fetches to continue after appends. An API runs them before it answers the appends."""
        offsets = consumer_offsets(
            self.ownership, cluster, cluster_id, settings.offsets_topic_num_partitions, RejectedBatches(clock.ticks_ms)
        )
        self.topics.internal[offsets.topic.name] = offsets

    async def start(self, progress: Progress | None = None) -> None:
        """Load topics and groups, and start retention."""
        await self.topics.load(progress)
        if self.archives is not None:
            await self._attach({log: live.topic for live in self.topics for log in _logs(live)})
        await self.groups.load()
        self.transactions.coordinator.load()
        loop = asyncio.get_running_loop()
        enforcing = retention.keep_enforcing(self.topics, self.clock, self.settings, self.archives)
        self._tasks.append(loop.create_task(enforcing))
        self._tasks.append(loop.create_task(keep_cleaning(self.cleaner, self.clock, self.settings)))
        self._tasks.append(loop.create_task(keep_checking(self._late, self.clock)))
        self._tasks.append(loop.create_task(self._snapshots.keep_saving(self.clock)))
        await self.unopened.look()
        self._tasks.append(loop.create_task(self.unopened.keep_looking()))

    async def _attach(self, logs: Mapping[LeaderPartition, Topic]) -> None:
        assert self.archives is not None
        topics = {topic.id: topic for topic in logs.values()}
        archived = {each for each, topic in topics.items() if resolve(topic.config, self.topics.defaults).remote}
        if archived:
            await self.archives.load_starts()
        for log, topic in logs.items():
            if topic.id in archived and (cold := self.archives.partition(topic, log.index)) is not None:
                log.cold = cold

    def configure(self, settings: BrokerSettings) -> None:
        """Apply settings of topics, their creation and defaults of groups. Others apply after a restart."""
        self.settings = settings
        self.topics.set_defaults(settings.topic_defaults)
        self.group_configs.set_defaults(settings.group_defaults)

    def view_changed(self) -> None:
        """Apply a changed cluster membership: recover new logs, release others."""
        for live in self.topics:
            self.topics.leading.view_changed(live.topic, live.partitions)
        self.groups.adopt()
        self.transactions.coordinator.adopt()

    async def hand_over(self) -> None:
        """Save state for the next owners."""
        await self._snapshots.save_last()

    def _topic_id(self, name: str) -> UUID | None:
        return self.topics.get(name).topic.id if self.topics.has(name) else None

    async def _stored_topic_id(self, name: str) -> UUID | None:
        found = await self.storage.topics.find(name)
        return None if found is None else found.id

    async def stop(self) -> None:
        """Stop timers and background work."""
        self.topics.leading.stop()
        await asyncio.gather(*map(end, self._tasks))
        await self.transactions.stop()
        await self.groups.stop()
        await self._snapshots.save_last()

    def _committed(self, group: str) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self.groups.positions(group)

    def _partition(self, partition: TopicPartition) -> Partition | None:
        try:
            return self.topics.partition(partition.topic, partition.partition)
        except UnknownTopic:
            return None

    async def adopt(self, name: str, stream: str, partition: int, config: dict[str, str]) -> LiveTopic:
        """See `native.adoption.adopt`.

        Raises:
            InvalidConfig: the key is Headrace's own, or `headrace.adopt.prefixes` does not have it.
        """
        for own in (KEY_PREFIX, self.settings.headrace_stream_prefix):
            # Some have braces, as the hash tag of Redis Cluster.
            if stream.lstrip("{").startswith(f"{own}:"):
                raise InvalidConfig(
                    f"stream {stream!r} may not become a topic: keys that begin with {own}: are Headrace's own; "
                    "name a stream that another program writes"
                )
        allowed = self.settings.headrace_adopt_prefixes
        prefixes = [prefix.strip() for prefix in allowed.split(",") if prefix.strip()]
        if not any(prefix == "*" or stream.startswith(prefix) for prefix in prefixes):
            raise InvalidConfig(
                f"stream {stream!r} may not become a topic: headrace.adopt.prefixes is {allowed!r}; "
                "to allow it, start the server with --set headrace.adopt.prefixes=PREFIX"
            )
        return await adopt(self.topics, name, stream, partition, config)

    async def convert(self, name: str, storage: str) -> int:
        """See `native.conversion.convert`."""
        return await convert(
            self.topics, name, storage, NativeGroupOffsets(self.groups, self.instances, self.positions)
        )

    def check_writable(self, topic: str | UUID, index: int) -> None:
        """Raise the error that an append to a partition would get before its batch is examined.

        `topic`: its name or id.

        Raises:
            UnknownTopic, InvalidTopicName: there is no such partition for clients.
            StorageUnavailable: the server accepts no records. NotLeader: another broker leads the partition.
        """
        self.topics.referred(topic).check_writable(index)
        if refusal := self._services.refusal():
            raise StorageUnavailable(refusal)

    def append(
        self,
        topic: str,
        index: int,
        batch: bytearray | memoryview,
        done: AppendDone,
        *,
        most_bytes: int | None = None,
    ) -> None:
        """Check and append one record batch. `done` gets its offset or the error.

        The broker takes over the writable buffer. `most_bytes` replaces the topic's `max.message.bytes`.

        Raises:
            UnknownTopic, and errors of `topics.validator.accept`. Then `done` is not called.
        """
        live = self.topics.get(topic)
        live.append(index, batch, self.clock.now_ms(), done, most_bytes=most_bytes)

    async def positions(
        self, group: str, asked: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `NativeGroups.positions`."""
        return await self.native_groups.positions(group, self.groups.positions(group), asked)

    def searcher(self) -> Searcher:
        """Return a searcher for one request."""
        return Searcher(self.decompression, self.large_reads)

    async def find_offset(
        self, partition: Source, timestamp: int, searcher: Searcher | None = None, isolation: Isolation = UNCOMMITTED
    ) -> FoundOffset:
        """See `offset_lookup.find`."""
        return await partition.find_offset(timestamp, searcher or self.searcher(), isolation)

    async def source(self, partition: Partition, offset: int = 0) -> Source:
        """Return the reader of a partition's records up to an offset, from any leader. Raises StorageUnavailable.

        Reads storage for a log of another leader, one being recovered, or one that a client has seen longer than its
        known end. Reads the end of a plain stream if `offset` is beyond the known one.
        """
        log = partition.log
        if log is None:
            if partition.certainly_past_end(offset):
                await partition.ask_end()
            return partition
        if log.is_end_known and (not self.ownership.shared or (log.is_leader and offset <= log.log_end)):
            return log
        live = self.topics.get(partition.topic)
        if self.archives is not None and live.config.remote and not log.is_leader:
            # The archive may be newer than the loaded topic.
            await self._attach(dict.fromkeys(_logs(live), live.topic))
        return await RemotePartitionReader.look_at(log, self.storage.logs, offset)

    async def delete_records(self, partition: Partition, before_offset: int) -> int:
        """Move the log start offset, and return it. Raises OffsetOutOfRange, InvalidTopicName."""
        if is_reserved(partition.topic):
            raise not_for_clients(partition.topic)
        partition.check_readable(max(before_offset, partition.log_start))
        await partition.delete_before(before_offset)
        return partition.log_start

    def coordinator_of(self, group: str) -> int:
        """Return the node id of a group's coordinator."""
        return self.ownership.owner_of(self.ownership.group_key(self.cluster, group))

    async def new_producer_id(self) -> int:
        """Return a unique producer id."""
        return await self._producer_ids.next()

    async def _may_end(self, transaction: OpenTransaction, place: PartitionId) -> bool:
        if await self.transactions.may_end_in(transaction, place):
            return True
        # The topic may have moved here during the transaction.
        return await self._others.may_end(transaction, place.topic_id, place.index)

    async def topic_or_create(self, name: str, *, may_create: bool) -> LiveTopic:
        """Return a topic, created if the caller and `auto.create.topics.enable` allow it.

        Raises UnknownTopic, InvalidTopicName.
        """
        try:
            return self.topics.get(name)
        except UnknownTopic:
            if not (may_create and self.settings.auto_create_topics_enable):
                check_name(name)
                raise
            settings = self.settings
            replication = settings.default_replication_factor
            return await self.topics.create_if_missing(name, settings.num_partitions, replication)


def _logs(live: LiveTopic) -> list[LeaderPartition]:
    return [partition.log for partition in live.partitions if partition.log is not None]


class BrokerKnownTopics:
    """Topics as participants of transactions."""

    def __init__(self, own: TopicTable, others: OtherClusters) -> None:
        self._own = own
        self._others = others

    def named(self, name: str) -> LiveTopic:
        """Return a topic of the virtual cluster. Raises UnknownTopic."""
        return self._own.get(name)

    def anywhere(self, topic_id: UUID) -> LiveTopic | None:
        """See `OtherClusters.find`."""
        return self._own.with_id(topic_id.bytes) or self._others.find(topic_id)


class BrokerTopics(TopicListener):
    """Passes changes of topics to the parts of a broker, then to the server's listener.

    Only this decides their order.
    """

    def __init__(self, broker: Broker, outside: TopicListener) -> None:
        """The broker may still be under construction."""
        self._broker = broker
        self._outside = outside
        self._deleted: set[UUID] = set()

    def added(self, live: LiveTopic) -> None:
        """Groups may read it."""
        self._broker.native_groups.topic_added(live)
        self._broker.groups.topic_changed(live.topic.name)
        self._outside.added(live)

    def replaced(self, live: LiveTopic) -> None:
        """Groups read the new partitions."""
        self._broker.native_groups.topic_added(live)
        self._broker.groups.topic_changed(live.topic.name)
        self._outside.replaced(live)

    def deleted(self, live: LiveTopic) -> None:
        """Delete its archive's documents."""
        if self._broker.archives is not None:
            self._broker.archives.forget(live.topic)
        self._deleted.add(live.topic.id)
        self._outside.deleted(live)

    def left(self, name: str) -> None:
        """Groups no longer read it."""
        self._broker.native_groups.topic_deleted(name)
        self._broker.groups.topic_changed(name)
        self._outside.left(name)

    def removed(self, live: LiveTopic) -> None:
        """Stop reading its archive, and sharing its records."""
        self._broker.shares.topic_removed(each.stream for each in live.partitions)
        if self._broker.archives is not None:
            self._broker.archives.dismiss(live.topic)
        self._outside.removed(live)

    async def forget(self, topic: Topic) -> None:
        """Delete groups' committed offsets, and the partitions of transactions."""
        broker = self._broker
        await broker.groups.topic_deleted(DropTopic(topic.name, topic.id), broker.lane.pace())
        # One that moved to another virtual cluster still needs the ends of its transactions.
        if topic.id in self._deleted:
            self._deleted.remove(topic.id)
            await broker.transactions.coordinator.topic_deleted(topic.id, broker.lane.pace())
        await self._outside.forget(topic)

    async def reread(self, name: str) -> None:
        """Load the topic as another broker has changed it."""
        await refresh(self._broker.topics, name)
