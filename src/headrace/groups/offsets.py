"""Committed and pending offsets of a group, classic or balanced. The group decides which members may commit."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic, EndOffsets, TxnOffsetCommit
from headrace.groups.model import (
    DropOffsets,
    DropPending,
    GroupChange,
    GroupSettings,
    OffsetAndMetadata,
    PendingKey,
    PendingOffset,
    SaveOffsets,
    SavePending,
    TopicPartition,
)
from headrace.groups.pending_offsets import PendingOffsets, size_of


# Offset resets, for the command and the console.
class Target(msgspec.Struct, frozen=True):
    """Target of a reset: exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None


class Move(msgspec.Struct, frozen=True):
    """Change of a committed offset."""

    topic: str
    partition: int
    position: int | None
    """Current offset. None: no commit."""
    to: int
    lag: int | None
    """Records left afterwards. None: unknown for native topics, whose offsets have gaps."""


def destination(target: Target, log_start: int, log_end: int, at: int | None) -> int:
    """Return the new offset in a log.

    `at` is the first offset of the target's time. None or negative: no record is that late.
    """
    if target.earliest:
        return log_start
    if target.offset is not None:
        return min(max(target.offset, log_start), log_end)
    if target.time_ms is not None and at is not None and at >= 0:
        return at
    return log_end  # latest, or a time after the last record


# Lag, for commands, metrics and the console.
def record_lag(position: int | None, log_start: int, log_end: int) -> int:
    """Return the records from `position`, or from the log start offset without commits.

    Deleted records do not count.
    """
    return max(0, log_end - max(log_start, position or 0))


def native_record_lag(undelivered: int | None, pending: int) -> int | None:
    """Return the lag in a native topic: undelivered and uncommitted records. None: Redis does not know."""
    return None if undelivered is None else undelivered + pending


_OFFSET_BYTES = 400
"""Charged for each committed offset in addition to its metadata."""


def _size_of(position: OffsetAndMetadata) -> int:
    metadata = position.metadata
    return _OFFSET_BYTES + (len(metadata) if metadata.isascii() else 4 * len(metadata))


Outcome = dict[TopicPartition, GroupError | None]
Since = Callable[[TopicPartition, OffsetAndMetadata], int | None]
"""Returns since when (ms) an offset's retention counts. None: in use."""


class CommittedOffsets:
    """Committed offsets of one group by partition, and those of open transactions."""

    def __init__(
        self,
        stored: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({}),
        pending: Mapping[PendingKey, PendingOffset] = MappingProxyType({}),
    ) -> None:
        self._positions = dict(stored)
        self.pending = PendingOffsets(pending)
        self._size = sum(map(_size_of, self._positions.values()))

    def __len__(self) -> int:
        """Return the number of committed and of pending offsets."""
        return len(self._positions) + len(self.pending)

    @property
    def size(self) -> int:
        """Approximate bytes of all of them."""
        return self._size + self.pending.size

    def get(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Return a partition's committed offset, if any."""
        return self._positions.get(partition)

    def all(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return a view of all offsets."""
        return MappingProxyType(self._positions)

    def commit(
        self,
        positions: Mapping[TopicPartition, OffsetAndMetadata],
        settings: GroupSettings,
        now_ms: int,
        room: int = 1 << 62,
        *,
        overtakes: bool = True,
    ) -> tuple[list[GroupChange], Outcome]:
        """Commit offsets. Return the changes to store, and each partition's outcome.

        `overtakes`: these offsets replace the pending ones of their partitions, whose transactions end later. `room` is
        the number of bytes by which they may grow. An offset that replaces a larger or equal one always fits.
        """
        outcome: Outcome = {}
        taken: dict[TopicPartition, OffsetAndMetadata] = {}
        for partition, position in positions.items():
            if len(position.metadata) > settings.offset_metadata_max:
                outcome[partition] = GroupError.OFFSET_METADATA_TOO_LARGE
                continue
            before = self._positions.get(partition)
            growth = _size_of(position) - (0 if before is None else _size_of(before))
            if growth > max(room, 0):
                outcome[partition] = GroupError.POLICY_VIOLATION
                continue
            room -= growth
            self._size += growth
            outcome[partition] = None
            if position.committed_ms != now_ms:
                position = msgspec.structs.replace(position, committed_ms=now_ms)  # noqa: PLW2901
            taken[partition] = position
        self._positions.update(taken)
        changes: list[GroupChange] = [SaveOffsets(taken)] if taken else []
        return changes + (self._overtake(taken) if overtakes else []), outcome

    def _overtake(self, partitions: Iterable[TopicPartition]) -> list[GroupChange]:
        if not len(self.pending):
            return []
        overtaken = {
            key: msgspec.structs.replace(each, overtaken=True)
            for partition in partitions
            for key in self.pending.of_partition(partition)
            if (each := self.pending.get(key)) is not None and not each.overtaken
        }
        self.pending.put(overtaken)
        return [SavePending(overtaken)] if overtaken else []

    def store_pending(
        self, request: TxnOffsetCommit, settings: GroupSettings, room: int
    ) -> tuple[list[GroupChange], Outcome]:
        """Store offsets of a transaction. Return the changes to store, and each partition's outcome.

        Offsets of the producer's earlier transactions are dropped: their coordinator has forgotten them. `room` is as
        for `commit`.
        """
        last = self.pending.last_of_producer(request.producer_id)
        earlier = () if last is None or last.number == request.number else self.pending.of_producer(request.producer_id)
        changes: list[GroupChange] = self._drop_pending(earlier)
        free = settings.max_pending_offsets - len(self.pending)
        outcome: Outcome = {}
        taken: dict[PendingKey, PendingOffset] = {}
        for partition, position in request.positions.items():
            key = PendingKey(request.producer_id, partition)
            pending = PendingOffset(
                producer_epoch=request.producer_epoch,
                transactional_id=request.transactional_id,
                number=request.number,
                position=position,
            )
            before = self.pending.get(key)
            growth = size_of(pending) - (0 if before is None else size_of(before))
            if len(position.metadata) > settings.offset_metadata_max:
                outcome[partition] = GroupError.OFFSET_METADATA_TOO_LARGE
            elif growth > max(room, 0) or (before is None and not free):
                outcome[partition] = GroupError.POLICY_VIOLATION
            else:
                room -= growth
                free -= before is None
                outcome[partition] = None
                taken[key] = pending
        self.pending.put(taken)
        if taken:
            changes.append(SavePending(taken))
        return changes, outcome

    def end_pending(self, end: EndOffsets, settings: GroupSettings, now_ms: int) -> list[GroupChange]:
        """End a transaction. Return the changes to store, none for a repeat.

        Committed offsets replace those of their partitions, except where a later commit has overtaken them.
        """
        mine = {
            key: each for key, each in self.pending.of_producer(end.producer_id).items() if each.number <= end.number
        }
        ended = self._drop_pending(mine)
        committed = {
            key.partition: each.position
            for key, each in mine.items()
            if end.commit and each.number == end.number and not each.overtaken
        }
        # Of several producers, the last one to end decides.
        changes, _ = self.commit(committed, settings, now_ms, overtakes=False)
        return changes + ended

    def lose_pending(self, producer_id: int, number: int) -> list[GroupChange]:
        """Drop the pending offsets of one transaction. Return the changes to store."""
        return self._drop_pending(
            key for key, each in self.pending.of_producer(producer_id).items() if each.number == number
        )

    def _drop_pending(self, keys: Iterable[PendingKey]) -> list[GroupChange]:
        gone = self.pending.remove(keys)
        return [DropPending(gone)] if gone else []

    def clear(self) -> None:
        """Forget all offsets of a group that is dropped."""
        self._positions.clear()
        self.pending.clear()
        self._size = 0

    def drop(self, partitions: Iterable[TopicPartition]) -> list[GroupChange]:
        """Remove committed and pending offsets. Return the changes to store."""
        named = tuple(partitions)
        pending = [key for partition in named for key in self.pending.of_partition(partition)]
        return self._drop_committed(named) + self._drop_pending(pending)

    def _drop_committed(self, partitions: Iterable[TopicPartition]) -> list[GroupChange]:
        gone = []
        for partition in partitions:
            position = self._positions.pop(partition, None)
            if position is not None:
                self._size -= _size_of(position)
                gone.append(partition)
        return [DropOffsets(tuple(gone))] if gone else []

    def drop_topic(self, drop: DropTopic) -> list[GroupChange]:
        """Remove offsets of a deleted topic. Return the changes to store."""
        gone = [
            place
            for place, position in self._positions.items()
            if place.topic == drop.topic and drop.takes(position.topic_id)
        ]
        pending = [
            key
            for key, each in self.pending.all().items()
            if key.partition.topic == drop.topic and drop.takes(each.position.topic_id)
        ]
        return self._drop_committed(gone) + self._drop_pending(pending)

    def expire(self, since: Since, settings: GroupSettings, now_ms: int) -> list[GroupChange]:
        """Remove expired offsets without pending ones. Return the changes to store."""
        oldest = now_ms - settings.offsets_retention_ms
        expired = []
        for partition, position in self._positions.items():
            if partition in self.pending:
                continue
            start = since(partition, position)
            if start is not None and start <= oldest:
                expired.append(partition)
        return self.drop(expired)

    def next_expiry_ms(self, since: Since, settings: GroupSettings) -> int | None:
        """Return when the first offset may expire, if any."""
        starts = (
            since(partition, position)
            for partition, position in self._positions.items()
            if partition not in self.pending
        )
        first = min((start for start in starts if start is not None), default=None)
        return None if first is None else first + settings.offsets_retention_ms
