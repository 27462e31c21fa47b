"""Convert a topic to the other storage: the same records in order, at other offsets.

Records are copied to new streams while the topic is in use. Then clients receive retriable errors for a moment, the
rest is copied, and the registry entry is replaced, which commits the conversion. If the server fails before, the topic
is unchanged, and the next start, creation or conversion removes the copy. Committed offsets are converted record by
record, for groups without members.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from headrace.aio.tasks import to_the_end
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.broker.coordinator.instances import Instances
from headrace.broker.native.adoption import replace
from headrace.broker.native.batch_split import Piece, pieces
from headrace.broker.native.stream_manager import natives_of
from headrace.broker.partition.cache import Buffer
from headrace.broker.partition.partition import Partition
from headrace.broker.runtime.decompression import HERE
from headrace.broker.runtime.retry import retry_while_unavailable
from headrace.broker.topics.live import LiveTopic
from headrace.broker.topics.table import TopicTable
from headrace.groups.consumer_subscription import topics_of
from headrace.groups.description import GroupDescription
from headrace.groups.effects import CommitResult
from headrace.groups.errors import GroupError
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.records.batch import peek
from headrace.records.errors import BatchError
from headrace.topics.config import resolve
from headrace.topics.errors import (
    CorruptBatch,
    Fenced,
    InvalidConfig,
    InvalidRecord,
    MessageTooLarge,
    StorageUnavailable,
    TopicError,
)
from headrace.topics.model import Append, Appended, StoredBatch, Topic
from headrace.topics.native import ADOPTED, STORAGE, adopted

_READ_BYTES = 1 << 20
_MOST_ROUNDS = 64
"""Maximum iterations of `_READ_BYTES` that follow active producers after the initial records."""
_REFUSED = (CorruptBatch, InvalidRecord, MessageTooLarge)
"""Records that the other storage never accepts."""
_Given = tuple[Piece, "asyncio.Future[Appended | Exception]"]
"""Records sent to the target and their pending result."""
_AWAY = GroupError.COORDINATOR_NOT_AVAILABLE
CommittedOffsets = Callable[[str, Iterable[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata]]]
_log = structlog.get_logger("headrace.broker.native")


class CarryOffsets(Protocol):
    """Converts the committed offsets of groups."""

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        """Return committed offsets by partition. Raises InvalidConfig while a group has members."""

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        """Commit as many new offsets as possible. Raises StorageUnavailable if any failed."""


class Conversion:
    """The conversion of one topic."""

    def __init__(
        self, partitions: Sequence[Partition], targets: Sequence[Partition], positions: Mapping[int, set[int]]
    ) -> None:
        """`targets` are open and empty. `positions` are offsets to convert."""
        self._partitions = partitions
        self._targets = targets
        self._at = [0 for _ in partitions]
        self._wanted = {partition: sorted(found) for partition, found in positions.items()}
        self.moved: dict[tuple[int, int], int] = {}
        """(partition, old offset) -> the new offset of the same or the next record."""
        self._ends = [0 for _ in partitions]
        self.copied = 0
        self._firsts: dict[int, int] = {}

    async def copy(self, *, last: bool) -> None:
        """Copy all records if `last`; otherwise stop when few are left."""
        for index, partition in enumerate(self._partitions):
            if last:
                # Wait for appends in flight.
                await partition.settle()
            # Producers may be as fast as the copy.
            end, after = partition.log_end, 0
            while batches := await self._read(index):
                await self._append(index, batches)
                caught_up = sum(len(each.batch) for each in batches) < _READ_BYTES
                after += self._at[index] > end
                if not last and self._at[index] >= end and (caught_up or after >= _MOST_ROUNDS):
                    break
        if last:
            for index, wanted in self._wanted.items():
                for offset in wanted:
                    self.moved.setdefault((index, offset), self._ends[index])

    async def begin_at_the_first_record(self) -> None:
        """Set each target's log start offset to its first offset.

        A reader with a saved log offset, such as a Spark checkpoint, then gets an out-of-range error, not all records
        again.
        """
        for index, first in self._firsts.items():
            await self._targets[index].delete_before(first)

    async def _read(self, index: int) -> list[StoredBatch]:
        partition = self._partitions[index]
        found = await partition.read_range(max(self._at[index], partition.log_start), _READ_BYTES)
        if found:
            self._at[index] = found[-1].next_offset
        return found

    async def _append(self, index: int, batches: Sequence[StoredBatch]) -> None:
        given: list[_Given] = []
        size = 0
        try:
            for stored in batches:
                async for piece in self._pieces(index, stored):
                    given.append((piece, self._give(index, piece)))
                    size += len(piece.batch)
                    # Decompressed records may be a thousand times as long.
                    if size >= _READ_BYTES:
                        await self._stored(index, given)
                        size = 0
        finally:
            await self._stored(index, given)

    async def _stored(self, index: int, given: list[_Given]) -> None:
        """Wait for the results in order and clear the list. Raise the first error."""
        if given:
            await asyncio.wait([answer for _, answer in given])
        answered = given.copy()
        given.clear()
        for piece, answer in answered:
            result = answer.result()
            if isinstance(result, _REFUSED):
                raise self._refused(index, piece, result)
            if isinstance(result, Exception):
                raise result
            self._note(index, piece.offsets, result.base_offset)

    async def _pieces(self, index: int, stored: StoredBatch) -> AsyncIterator[Piece]:
        source = self._partitions[index]
        made = pieces(stored.batch, stored.base_offset, source.log_start)
        at = stored.base_offset
        while True:
            try:
                piece = await _next(made, stored.batch)
            except BatchError as error:
                why = f"{source.topic}-{index}: records from offset {at} on cannot be read: {error}"
                raise CorruptBatch(why) from None
            if piece is None:
                return
            yield piece
            at = piece.offsets[-1] + 1

    def _give(self, index: int, piece: Piece) -> "asyncio.Future[Appended | Exception]":
        answer: asyncio.Future[Appended | Exception] = asyncio.get_running_loop().create_future()

        def done(result: Appended | Exception) -> None:
            if not answer.done():
                answer.set_result(result)

        try:
            self._targets[index].append(Append(piece.batch, len(piece.offsets), piece.newest), done)
        except _REFUSED as error:
            raise self._refused(index, piece, error) from None
        return answer

    def _refused(self, index: int, piece: Piece, error: Exception) -> Exception:
        topic = self._partitions[index].topic
        return type(error)(f"{topic}-{index}: records from offset {piece.offsets[0]} on are not taken: {error}")

    def _note(self, index: int, offsets: Sequence[int], base: int) -> None:
        wanted = self._wanted.get(index, [])
        for place, offset in enumerate(offsets):
            while wanted and wanted[0] <= offset:
                self.moved[index, wanted.pop(0)] = base + place
        self._firsts.setdefault(index, base)
        self._ends[index] = base + len(offsets)
        self.copied += len(offsets)


async def _next(made: Iterator[Piece], batch: Buffer) -> Piece | None:
    if len(batch) <= HERE and not peek(batch).codec:
        return next(made, None)
    return await asyncio.to_thread(next, made, None)


def target_of(topic: Topic, storage: str) -> Topic:
    """Return the converted topic with new stream names.

    They include the topic's id: virtual clusters may have topics of the same name.

    Raises:
        InvalidConfig: the storage is unknown or already in use.
    """
    if storage not in {"log", "native"}:
        raise InvalidConfig(f"headrace.convert={storage}: expected log or native")
    if topic.config.get(STORAGE, "log") == storage:
        raise InvalidConfig(f"topic {topic.name!r} has headrace.storage={storage} already")
    foreign = adopted(topic)
    bases = (f"headrace:{topic.name}:{n}" if n in foreign else key for n, key in enumerate(topic.streams))
    streams = tuple(f"{base.partition('@')[0]}@{storage}-{topic.id.hex[:12]}" for base in bases)
    config = {name: value for name, value in topic.config.items() if name != ADOPTED} | {STORAGE: storage}
    return msgspec.structs.replace(topic, streams=streams, config=config)


async def convert(table: TopicTable, name: str, storage: str, move: CarryOffsets) -> int:
    """Convert a topic to `log` or `native` storage and return its number of records there.

    Raises:
        UnknownTopic, InvalidConfig, StorageUnavailable, StorageFull: the topic is unchanged.
    """
    return await to_the_end(_convert(table, name, storage, move))


async def _convert(table: TopicTable, name: str, storage: str, move: CarryOffsets) -> int:
    async with table.changing:
        live = table.changeable(name)
        view = table.leading.check_alone(f"topic {name!r} cannot be converted")
        before, target = live.topic, target_of(live.topic, storage)
        config = resolve(target.config, table.defaults)
        wanted = await move.wanted(live)
        # Streams of an earlier attempt, and of earlier use of that storage.
        await table.storage.topics.finish_deletions(before)
        await table.storage.topics.drop_streams(target)
        # First, so that a later start can remove the keys after a failure.
        await table.storage.topics.note(target)
        converted = LiveTopic(target, config, await table.manager(config).open(target, config, 0, listed=False))
        conversion = Conversion(live.partitions, converted.partitions, wanted)
        carried = False
        try:
            await conversion.copy(last=False)
            for partition in live.partitions:
                partition.paused = True
            await conversion.copy(last=True)
            if storage == "native":
                await conversion.begin_at_the_first_record()
            await _check_offsets(live, wanted, move)
            # Log offsets are smaller than native ones: after a failure, a group repeats records but skips none.
            if storage == "log":
                await _check_view(table, before, view)
                carried = True
                await move.carry(live, conversion.moved)
            await replace(table.storage.topics, target, before, view)
        except Exception as error:
            # After any error: the topic would otherwise accept no more records.
            for partition in live.partitions:
                partition.paused = False
            for partition in converted.partitions:
                partition.close()
            if carried:
                await _carry_back(live, wanted, move)
            with contextlib.suppress(TopicError):
                await table.storage.topics.finish_deletions()
            if isinstance(error, Fenced) and view is not None:
                why = f"topic {name!r} stays as it is: another broker has joined or left in the meantime"
                raise InvalidConfig(why) from error
            raise
        closed = live.partitions
        live.topic, live.config = target, converted.config
        table.put(live, converted.partitions)
        # Brokers ignored them while the registry did not have the logs.
        table.leading.republish(converted.partitions, {})
        for partition in closed:
            partition.close()
        _log.info("topic converted", topic=name, storage=storage, records=conversion.copied)
        try:
            if storage == "native":
                await move.carry(live, conversion.moved)
        finally:
            await _drop(table, before)
        return conversion.copied


async def _drop(table: TopicTable, before: Topic) -> None:
    """Remove the old streams. Failures are retried with the next topic creation or start."""
    try:
        await retry_while_unavailable(table.storage.topics.finish_deletions)
    except TopicError as error:
        _log.error("old streams not removed", topic=before.name, streams=before.streams, reason=str(error))
        raise


async def _check_offsets(live: LiveTopic, wanted: Mapping[int, set[int]], move: CarryOffsets) -> None:
    """Raise InvalidConfig if groups whose offsets would not be converted appeared or moved."""
    for partition, offsets in (await move.wanted(live)).items():
        if offsets - wanted.get(partition, set()):
            raise InvalidConfig(f"groups have continued to read topic {live.topic.name!r}: stop their consumers first")


async def _check_view(table: TopicTable, topic: Topic, view: int | None) -> None:
    """Raise Fenced, before offsets change, if this server is no longer alone. Redis knows first."""
    if view is not None:
        await table.storage.topics.replace(topic, topic, view)


async def _carry_back(live: LiveTopic, wanted: Mapping[int, set[int]], move: CarryOffsets) -> None:
    """Restore the old offsets. With log offsets, groups would read a native topic from its start."""
    try:
        await move.carry(live, {(index, offset): offset for index, found in wanted.items() for offset in found})
    except TopicError as error:
        _log.warning(
            "committed offsets could not be restored: groups may read the topic again",
            topic=live.topic.name,
            reason=str(error),
        )


class NativeGroupOffsets:
    """Committed offsets of all groups of a broker; implements `CarryOffsets`."""

    def __init__(self, groups: GroupCoordinator, instances: Instances, committed: CommittedOffsets) -> None:
        self._groups = groups
        self._instances = instances
        self._committed = committed
        self._stand: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    async def wanted(self, live: LiveTopic) -> dict[int, set[int]]:
        """See `CarryOffsets.wanted`.

        Raises:
            StorageUnavailable: a group is not loaded, for example because its broker failed.
        """
        name = live.topic.name
        if self._instances.groups_of(live):
            raise InvalidConfig(f"topic {name!r} has groups of OCI instances: delete them first")
        await self._load_all()
        offsets: dict[int, set[int]] = {}
        self._stand.clear()
        known = {group.name: group for group in self._groups.describe_all()}
        for group in sorted(known.keys() | await _groups_of_redis(live)):
            found = await self._committed(group, [TopicPartition(name, each.index) for each in live.partitions])
            described = known.get(group)
            if described is not None and described.members and (found or _reads(described, name)):
                raise InvalidConfig(f"group {group!r} reads topic {name!r}: stop its consumers first")
            if found:
                self._stand[group] = found
            for partition, position in found.items():
                offsets.setdefault(partition.partition, set()).add(position.offset)
        return offsets

    async def _load_all(self) -> None:
        groups = self._groups
        if groups.coordination.shared:
            for name in await groups.storage.names():
                refused = await groups.ready(name)
                if refused is not None:
                    raise StorageUnavailable(f"group {name!r} is not known here yet: {refused.name}")

    async def carry(self, live: LiveTopic, moved: Mapping[tuple[int, int], int]) -> None:
        """See `CarryOffsets.carry`."""
        left = dict(self._stand)
        refused: dict[str, CommitResult] = {}

        async def commit_left() -> None:
            refused.clear()
            for group, positions in tuple(left.items()):
                result = await self._commit(group, positions, moved)
                if any(error is not None for error in result.partitions.values()):
                    refused[group] = result
                else:
                    # Commit each only once: the group may advance while others are retried.
                    del left[group]
            if any(_AWAY in result.partitions.values() for result in refused.values()):
                raise StorageUnavailable(_untaken(refused))

        await retry_while_unavailable(commit_left)
        if refused:
            raise StorageUnavailable(_untaken(refused))

    async def _commit(
        self, group: str, positions: Mapping[TopicPartition, OffsetAndMetadata], moved: Mapping[tuple[int, int], int]
    ) -> CommitResult:
        new = {
            partition: OffsetAndMetadata(offset=moved[partition.partition, position.offset], metadata=position.metadata)
            for partition, position in positions.items()
        }
        commit = Commit(token=object(), generation=-1, member_id="", instance_id=None, positions=new)
        result = await self._groups.request(group, commit)
        assert isinstance(result, CommitResult)
        return result


def _untaken(refused: Mapping[str, CommitResult]) -> str:
    return "; ".join(
        f"positions of group {group!r} were not taken: {result.partitions}" for group, result in refused.items()
    )


async def _groups_of_redis(live: LiveTopic) -> set[str]:
    return {
        each.name for native in natives_of(live.partitions) for each in await native.storage.group_lags(native.place)
    }


def _reads(group: GroupDescription, topic: str) -> bool:
    return any(topic in (topics_of(member.metadata) or ()) for member in group.members)
