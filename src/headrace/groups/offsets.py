"""Committed positions of a group: what both kinds of group, classic and balanced, keep in the same way.

Who may commit is the group's to decide; this file knows nothing of members and generations.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec

from headrace.groups.errors import GroupError
from headrace.groups.events import DropTopic
from headrace.groups.model import (
    DropOffsets,
    GroupChange,
    GroupSettings,
    OffsetAndMetadata,
    SaveOffsets,
    TopicPartition,
)


# Where a position goes when a group is reset: the one rule for the command and the page.
class Target(msgspec.Struct, frozen=True):
    """Where positions are to go: exactly one of these."""

    earliest: bool = False
    latest: bool = False
    offset: int | None = None
    time_ms: int | None = None


class Move(msgspec.Struct, frozen=True):
    """What becomes of a position."""

    topic: str
    partition: int
    position: int | None
    """Where it is; None: nothing was committed."""
    to: int
    lag: int | None
    """Records to come afterwards; None where a native topic, whose offsets have gaps, does not tell."""


def destination(target: Target, log_start: int, log_end: int, at: int | None) -> int:
    """The new position in a log.

    Args:
        target: where it is to go.
        log_start: where the log starts.
        log_end: and ends.
        at: the first offset of the time in `target`; None or negative: no record is so late.
    """
    if target.earliest:
        return log_start
    if target.offset is not None:
        return min(max(target.offset, log_start), log_end)
    if target.time_ms is not None and at is not None and at >= 0:
        return at
    return log_end  # the latest, or a time after the last record


# How many records a group has to come: the one rule for commands, metrics and pages.
def record_lag(position: int | None, log_start: int, log_end: int) -> int:
    """Records from the position on, from the log start where nothing was committed.

    What retention has taken since does not come any more.
    """
    return max(0, log_end - max(log_start, position or 0))


def native_record_lag(undelivered: int | None, pending: int) -> int | None:
    """The same in a native topic: records not delivered or not committed; None: Redis cannot tell."""
    return None if undelivered is None else undelivered + pending


_OFFSET_BYTES = 400
"""Counted for each committed offset in addition to its metadata: objects, and their places in two dictionaries."""


def _size_of(position: OffsetAndMetadata) -> int:
    metadata = position.metadata
    return _OFFSET_BYTES + (len(metadata) if metadata.isascii() else 4 * len(metadata))


Outcome = dict[TopicPartition, GroupError | None]
Since = Callable[[TopicPartition, OffsetAndMetadata], int | None]
"""From when (ms) a position's retention counts; None while it is in use."""


class CommittedOffsets:
    """The positions of one group by partition."""

    def __init__(self, stored: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})) -> None:
        self._positions = dict(stored)
        self.size = sum(map(_size_of, self._positions.values()))
        """About how many bytes all of them take."""

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The position in a partition; None when nothing was ever committed there."""
        return self._positions.get(partition)

    def all(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Every position; a view, not a copy."""
        return MappingProxyType(self._positions)

    def commit(
        self,
        positions: Mapping[TopicPartition, OffsetAndMetadata],
        settings: GroupSettings,
        now_ms: int,
        room: int = 1 << 62,
    ) -> tuple[list[GroupChange], Outcome]:
        """Take new positions; the changes to make durable, and each partition's outcome. One may fail alone.

        Args:
            positions: what is committed.
            settings: limits of every group.
            now_ms: the time.
            room: bytes by which they may grow. A position that replaces one and is no larger is always taken.
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
            self.size += growth
            outcome[partition] = None
            if position.committed_ms != now_ms:
                position = msgspec.structs.replace(position, committed_ms=now_ms)  # noqa: PLW2901
            taken[partition] = position
        self._positions.update(taken)
        return ([SaveOffsets(taken)] if taken else []), outcome

    def clear(self) -> None:
        """Forget everything; for a group that is dropped as a whole."""
        self._positions.clear()
        self.size = 0

    def drop(self, partitions: Iterable[TopicPartition]) -> list[GroupChange]:
        """Remove positions; the changes to make durable, none where nothing was kept."""
        gone = []
        for partition in partitions:
            position = self._positions.pop(partition, None)
            if position is not None:
                self.size -= _size_of(position)
                gone.append(partition)
        return [DropOffsets(tuple(gone))] if gone else []

    def drop_topic(self, drop: DropTopic) -> list[GroupChange]:
        """Remove the positions in a topic that are meant; the changes to make durable."""
        gone = [
            place
            for place, position in self._positions.items()
            if place.topic == drop.topic and drop.takes(position.topic_id)
        ]
        return self.drop(gone)

    def expire(self, since: Since, settings: GroupSettings, now_ms: int) -> list[GroupChange]:
        """Remove positions whose retention is over; the changes to make durable."""
        oldest = now_ms - settings.offsets_retention_ms
        expired = []
        for partition, position in self._positions.items():
            start = since(partition, position)
            if start is not None and start <= oldest:
                expired.append(partition)
        return self.drop(expired)

    def next_expiry_ms(self, since: Since, settings: GroupSettings) -> int | None:
        """When the first position may expire; None while all are in use or there is none."""
        starts = (since(partition, position) for partition, position in self._positions.items())
        first = min((start for start in starts if start is not None), default=None)
        return None if first is None else first + settings.offsets_retention_ms
