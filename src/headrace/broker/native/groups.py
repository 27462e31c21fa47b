"""Apply group changes to the Redis consumer groups of native topics.

A commit acknowledges entries (XACK) before it is stored and answered. A leaving member's consumer is removed. Nothing
is mirrored, because the Redis group is the group.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from headrace.aio.single_flight import SingleFlight
from headrace.broker.native.delivery import Delivery
from headrace.broker.native.owners import Owner, Owners, consumer_of, held
from headrace.broker.native.partition import NativePartition
from headrace.broker.native.stream_manager import natives_of
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.partition.source import (
    UNCOMMITTED,
    AlwaysStable,
    Isolation,
    Readable,
    Watcher,
)
from headrace.broker.ports import GroupStorage
from headrace.broker.runtime.budget import ReadBudget
from headrace.broker.runtime.retry import retry_while_unavailable
from headrace.broker.runtime.scheduler import CooperativeScheduler
from headrace.broker.topics.live import LiveTopic
from headrace.groups.model import (
    DropField,
    DropGroup,
    DropMember,
    DropPending,
    GroupChange,
    OffsetAndMetadata,
    SaveField,
    SaveMember,
    SaveOffsets,
    StoredConsumer,
    StoredGroup,
    TopicPartition,
)
from headrace.groups.offsets import native_record_lag
from headrace.topics.errors import StorageUnavailable, TopicError, UnknownTopic
from headrace.topics.native import GroupLag, NotAStream


# Each fetch queries Redis at least once, because any client may add entries.
class Reader(AlwaysStable):
    """A partition for a reader without a group."""

    def __init__(self, partition: NativePartition) -> None:
        self.partition = partition
        self._asked = False

    @property
    def log_start(self) -> int:
        """See `Readable`."""
        return self.partition.log_start

    @property
    def log_end(self) -> int:
        """See `Readable`."""
        return self.partition.log_end

    has_gaps = True

    def visible_end(self, isolation: Isolation) -> int:
        """Return the log end: every entry is readable."""
        return self.partition.visible_end(isolation)

    def check_readable(self, offset: int) -> None:
        """Raise UnknownTopic once the topic is deleted."""
        self.partition.check_readable(offset)

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """See `Readable.at_end`. False before the first query."""
        return self._asked and self.partition.visible_end(isolation) <= offset

    def cached(self, offset: int, *, ahead: bool = True) -> bool:
        """Return False: native topics are read from Redis."""
        return False

    def read_cached(
        self, offset: int, limit: int, *, whole_first: bool, join: bool = False, isolation: Isolation = UNCOMMITTED
    ) -> tuple[list[Buffer], int]:
        """Return nothing."""
        return [], 0

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """See `NativePartition.read_stored`."""
        self._asked = True
        return await self.partition.read_stored(offset, limit, first=first, isolation=isolation)

    def watch(self, watcher: Watcher, isolation: Isolation = UNCOMMITTED) -> None:
        """See `Readable`."""
        self.partition.watch(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """See `Readable`."""
        self.partition.unwatch(watcher)


class GroupReader(Reader):
    """A partition for the group member that owns it."""

    def __init__(self, delivery: Delivery, member: str) -> None:
        super().__init__(delivery.partition)
        self._delivery = delivery
        self._member = member

    def at_end(self, offset: int, isolation: Isolation = UNCOMMITTED) -> bool:
        """See `Reader.at_end`."""
        return super().at_end(offset, isolation) and self._delivery.at_end(self._member, offset)

    async def read_stored(
        self,
        offset: int,
        limit: int,
        *,
        join: bool = False,
        first: int | None = None,
        isolation: Isolation = UNCOMMITTED,
    ) -> tuple[list[Buffer], int]:
        """See `Delivery.read`."""
        self._asked = True
        return await self._delivery.read(self._member, offset, limit, first)


# State of a native topic in Redis as JSON, which DescribeConfigs shows as `headrace.native`.
#
# `records` and `unfit` count entries per partition (null: its key is no stream), and those without offset. `groups` has
# for each Redis consumer group and partition the entries that are `undelivered` (null: unknown) and `pending`, and the
# number of `consumers`.
_encode = msgspec.json.encode


async def describe(partitions: Sequence[NativePartition]) -> str:
    """Return a description of partitions. Raises StorageUnavailable."""
    records: list[int | None] = []
    unfit = [partition.unfit for partition in partitions]
    groups: dict[str, bytearray] = {}
    for partition in partitions:
        try:
            extent = await partition.storage.extent(partition.place)
            lags = await partition.storage.group_lags(partition.place)
        except NotAStream:
            records.append(None)
            continue
        records.append(extent.length)
        for each in lags:
            # Encode at once: there may be thousands of groups and partitions.
            groups.setdefault(each.name, bytearray()).extend(_member(partition.index, each))
    told = bytearray(b'{"records":%b,"unfit":%b,"groups":{' % (_encode(records), _encode(unfit)))
    for place, (name, members) in enumerate(groups.items()):
        told += b"%b%b:{" % (b"," if place else b"", _encode(name)) + members[1:] + b"}"
        await asyncio.sleep(0)
    return (told + b"}}").decode()


def _member(partition: int, lag: GroupLag) -> bytes:
    undelivered = "null" if lag.undelivered is None else lag.undelivered
    return (
        f',"{partition}":{{"undelivered":{undelivered},"pending":{lag.pending},"consumers":{lag.consumers}}}'.encode()
    )


_log = structlog.get_logger("headrace.broker.native")


class NativeGroups:
    """Group storage for the coordinator, and group reads for fetches."""

    def __init__(
        self,
        storage: GroupStorage,
        most_pending: int,
        committed: Callable[[str], Mapping[TopicPartition, OffsetAndMetadata]],
        reads: ReadBudget,
        lane: CooperativeScheduler,
    ) -> None:
        """For `most_pending` and `reads`, see `Delivery`."""
        self._storage = storage
        self._lane = lane
        self._lives: dict[str, LiveTopic] = {}
        self._described = SingleFlight(self._describe)
        self._natives: dict[TopicPartition, NativePartition] = {}
        self._most_pending = most_pending
        self._owners = Owners()
        self._committed = committed
        self._reads = reads
        self._told: dict[tuple[str, TopicPartition], int] = {}
        """Last offset in an OffsetFetch response. A member that starts there does not seek, even if others advanced."""
        self._deliveries: dict[tuple[str, TopicPartition], Delivery] = {}

    async def load(self) -> list[StoredGroup]:
        """Return every stored group and record its owners."""
        groups = await self._storage.load()
        for group in groups:
            self._owners.load(group)
        return groups

    async def names(self) -> list[str]:
        """See `GroupStorage.names`."""
        return await self._storage.names()

    def is_offline(self, group: str) -> bool:
        """See `GroupStorage.is_offline`."""
        return self._storage.is_offline(group)

    async def drop_offline(self, group: str) -> None:
        """Remove the keys of such a group. Its unknown Redis consumer groups remain."""
        await self._storage.drop_offline(group)

    async def load_one(self, name: str, view: int | None = None) -> StoredGroup:
        """Load a group by a broker epoch; None for the current one."""
        group = await self._storage.load_one(name, view)
        self._owners.load(group)
        return group

    def forget(self, group: str) -> None:
        """Drop a group that another broker now coordinates."""
        self._storage.forget(group)
        self._owners.apply(group, [DropGroup()])
        self._reset(group)

    async def save(self, group: str, changes: Sequence[GroupChange], view: int | None = None) -> None:
        """Acknowledge commits, store the changes, then remove consumers of members that left.

        An ended group's Redis groups are deleted first: a new group of that name would resume from them. After a
        failure in between, it can be deleted again.
        """
        for change in changes:
            if isinstance(change, SaveOffsets) and self._natives:
                await self._commit(group, change.positions)
        # A group that ends with a transaction had no committed offsets, so its Redis groups are those of programs.
        aborted = any(isinstance(change, DropPending) for change in changes)
        if self._natives and changes and isinstance(changes[-1], DropGroup) and not aborted:
            # Only the group's owner may. Fail early if nothing can be written.
            await self._storage.save(group, (), view)
            await self._forget(group)
        left = {
            change.member_id: self._owners.partitions(Owner(group, change.member_id))
            for change in changes
            if isinstance(change, DropMember)
        }
        left |= self._given_up(group, changes)
        await self._storage.save(group, changes, view)
        self._owners.apply(group, changes)
        for place in {place for places in left.values() for place in places}:
            if (delivery := self._deliveries.get((group, place))) is not None:
                delivery.reset()
        if any(isinstance(change, SaveMember) for change in changes):
            # A new generation classifies the fetches again.
            self._reset(group)
        for member, partitions in left.items():
            await self._leave(group, member, partitions)

    def _given_up(self, group: str, changes: Sequence[GroupChange]) -> dict[str, frozenset[TopicPartition]]:
        """Return what members of a consumer group no longer have. Their other partitions continue."""
        found: dict[str, frozenset[TopicPartition]] = {}
        for change in changes:
            match change:
                case SaveField(value) if isinstance(value, StoredConsumer):
                    lost = self._owners.partitions(Owner(group, value.member_id)) - held(value)
                    if lost:
                        found[value.member_id] = lost
                case DropField(field) if (member := consumer_of(field)) is not None:
                    found[member] = self._owners.partitions(Owner(group, member))
        return found

    async def _commit(self, group: str, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        places = [place for place, position in positions.items() if place in self._natives and position.offset >= 0]
        async for _ in self._lane.a_few_at_once(
            places, lambda place: self._commit_one(group, place, positions[place].offset)
        ):
            pass

    async def _commit_one(self, group: str, partition: TopicPartition, offset: int) -> None:
        native = self._natives.get(partition)
        if native is None:
            # The topic was deleted or replaced during the wait.
            return
        self._told.pop((group, partition), None)
        delivery = self._deliveries.get((group, partition))
        previous = self._committed(group).get(partition)
        kind = ""
        if previous is not None and offset < previous.offset:
            kind = "back"
        elif not self._owners.has_members(group) or (delivery is not None and delivery.sought_back):
            kind = "reset"
        try:
            acknowledged, moved = await native.storage.commit(native.place, group, offset, kind)
        except NotAStream as error:
            # Keep the offset and continue with other partitions.
            _log.warning("commit not mirrored to Redis", group=group, stream=native.stream, reason=str(error))
            return
        if delivery is not None:
            delivery.acknowledged(acknowledged)
            if moved:
                delivery.reset()

    def _committed_offset(self, key: tuple[str, TopicPartition]) -> int | None:
        group, partition = key
        known = self._committed(group).get(partition)
        return None if known is None else known.offset

    async def positions(
        self, group: str, committed: Mapping[TopicPartition, OffsetAndMetadata], asked: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets: from Redis for native topics, otherwise from `committed`.

        `asked`: partitions; None for all. Those without an offset are missing. Raises StorageUnavailable.
        """
        if asked is None:
            # Fast, even for thousands of partitions.
            await self._lane.turn()
            positions = dict(committed)
            natives = list(self._natives)
        else:
            wanted = list(asked)
            positions = {partition: committed[partition] for partition in wanted if partition in committed}
            natives = [partition for partition in wanted if partition in self._natives]
        async for partition, position in self._lane.a_few_at_once(
            natives, lambda place: self._position(place, group, committed.get(place))
        ):
            if position is not None:
                positions[partition] = position
                self._told[group, partition] = position.offset
            else:
                positions.pop(partition, None)
        return positions

    async def _position(
        self, partition: TopicPartition, group: str, committed: OffsetAndMetadata | None
    ) -> OffsetAndMetadata | None:
        native = self._natives.get(partition)
        if native is None:
            # The topic was deleted or replaced during the wait.
            return committed
        known = None if committed is None else committed.offset
        offset = await native.storage.position(native.place, group, known)
        if offset is None:
            return None
        # Metadata belongs to the offset with which it was committed.
        return committed if committed is not None and committed.offset == offset else OffsetAndMetadata(offset=offset)

    def reader(self, partition: Partition, client_id: str, host: str) -> Readable:
        """Return the partition for a Fetch, with its group if exactly one member owns it."""
        if not self._natives:
            return partition
        place = TopicPartition(partition.topic, partition.index)
        native = self._natives.get(place)
        if native is None:
            return partition
        owner = self._owners.find((client_id, host), place)
        if owner is None:
            return Reader(native)
        key = (owner.group, place)
        delivery = self._deliveries.get(key)
        if delivery is None or delivery.partition is not native:
            delivery = self._deliveries[key] = Delivery(
                owner.group,
                native,
                lambda: self._committed_offset(key),
                lambda: self._told.pop(key, None),
                self._most_pending,
                self._reads,
            )
        return GroupReader(delivery, owner.member)

    def _reset(self, group: str) -> None:
        for (name, _), delivery in self._deliveries.items():
            if name == group:
                delivery.reset()

    async def _leave(self, group: str, member: str, partitions: Iterable[TopicPartition]) -> None:
        """Remove a member's consumers. Those with pending entries remain for the next owner."""
        for partition in partitions:
            native = self._natives.get(partition)
            if native is None:
                continue
            try:
                await native.storage.leave(native.place, group, member)
            except TopicError as error:
                _log.warning("consumer not removed", group=group, stream=native.stream, reason=str(error))
        if not self._owners.has_members(group):
            for key in [key for key in self._deliveries if key[0] == group]:
                del self._deliveries[key]

    async def _forget(self, group: str) -> None:
        """Delete the Redis groups of an ended group. Raises StorageUnavailable if they remain."""
        for known in (self._deliveries, self._told):
            for key in [key for key in known if key[0] == group]:
                del known[key]
        left = list(self._natives.values())

        async def forget_left() -> None:
            while left:
                try:
                    await left[-1].storage.forget_group(left[-1].place, group)
                except StorageUnavailable:
                    raise
                except TopicError as error:
                    stream = left[-1].stream
                    _log.warning("Redis group not removed", group=group, stream=stream, reason=str(error))
                left.pop()

        await retry_while_unavailable(forget_left)

    async def describe(self, topic: str) -> str:
        """Return a native topic's state in Redis as JSON. Concurrent requests share the result.

        Raises StorageUnavailable, UnknownTopic.
        """
        return await self._described.get(topic)

    async def _describe(self, topic: str) -> str:
        if topic not in self._lives:
            raise UnknownTopic(f"there is no native topic {topic!r}")
        return await describe(natives_of(self._lives[topic].partitions))

    async def lags(self, topic: str, group: str) -> dict[TopicPartition, int | None]:
        """Return the lag by partition of a native topic, None if unknown. Without logs."""
        found: dict[TopicPartition, int | None] = {}
        for partition in natives_of(self._lives[topic].partitions) if self.has(topic) else ():
            place = TopicPartition(topic, partition.index)
            try:
                lags = await partition.storage.group_lags(partition.place)
                # The first fetch creates the Redis group.
                known = next((each for each in lags if each.name == group), None)
                if known is None:
                    found[place] = (await partition.storage.extent(partition.place)).length
                else:
                    found[place] = native_record_lag(known.undelivered, known.pending)
            except NotAStream:
                found[place] = None
        return found

    def has(self, topic: str) -> bool:
        """Whether a native topic of this name exists."""
        return topic in self._lives

    def topic_added(self, live: LiveTopic) -> None:
        """Add a topic's partitions if it is native, and replace earlier ones."""
        self._drop(live.topic.name)
        for partition in natives_of(live.partitions):
            self._lives[partition.topic] = live
            self._natives[TopicPartition(partition.topic, partition.index)] = partition

    def topic_deleted(self, topic: str) -> None:
        """Remove a deleted topic."""
        self._drop(topic)

    def _drop(self, topic: str) -> None:
        self._lives.pop(topic, None)
        for partition in [each for each in self._natives if each.topic == topic]:
            del self._natives[partition]
        for known in (self._deliveries, self._told):
            for key in [key for key in known if key[1].topic == topic]:
                del known[key]
