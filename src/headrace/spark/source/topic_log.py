"""What a query needs of the place where records lie, and the two places there are: Redis, and any Kafka cluster.

Stored batches become Arrow here, and a batch that cannot be read is reported or ends the query.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from headrace.client.errors import CorruptLog, OptionError, TopicReplaced
from headrace.client.offsets import Extent, Offsets, Range, TopicPartition
from headrace.records.batch import Buffer
from headrace.records.errors import BatchError
from headrace.spark.source.archived_records import ArchivedTopic

if TYPE_CHECKING:
    import pyarrow as pa


Unreadable = Callable[[TopicPartition, int, bytes, BatchError], None]
"""Told of a stored batch that cannot be read: where, its first offset, its bytes, what is wrong."""


@dataclass(frozen=True)
class Subscription:
    """Which partitions are read: exactly one of the three is given."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression that a topic's whole name must match."""
    assigned: tuple[TopicPartition, ...] = ()

    def wants(self, name: str) -> bool:
        """Whether a topic of this name is among those that `pattern` means."""
        return self.pattern is not None and re.fullmatch(self.pattern, name) is not None

    def named(self) -> tuple[str, ...]:
        """The topics that must be there."""
        return self.names or tuple(dict.fromkeys(partition.topic for partition in self.assigned))

    def chosen(self, extents: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, Extent]:
        """Those partitions of the topics that are read.

        Raises:
            OptionError: an assigned partition does not exist.
        """
        if not self.assigned:
            return dict(extents)
        missing = sorted(set(self.assigned) - set(extents))
        if missing:
            raise OptionError(f"option 'assign' names partitions that do not exist: {', '.join(map(str, missing))}")
        return {partition: extents[partition] for partition in self.assigned}


@dataclass(frozen=True)
class TopicLog:
    """What a reader must know of a topic."""

    name: str
    id: str
    """Empty where the cluster has no ids."""
    partitions: tuple[int, ...]
    streams: tuple[str, ...] = ()
    """Each partition's Redis key, where it has one."""
    archive: ArchivedTopic | None = None
    """Where old records of it are, when they are not in Redis any more."""
    bits: int | None = None
    """Native topics: how many bits of an offset hold the sequence of the entry id. Their offsets count no records."""

    def stream(self, partition: int) -> str:
        """The partition's Redis key; empty when it has none."""
        return self.streams[partition] if self.streams else ""


Topics = Mapping[str, TopicLog]


def ids(topics: Topics) -> dict[str, str]:
    """Return the ids of the topics that have one, by name."""
    return {name: topic.id for name, topic in topics.items() if topic.id}


def check_id(topic: TopicLog, expected: str) -> None:
    """Raise TopicReplaced when the topic has another id than it had."""
    if topic.id != expected:
        raise was_replaced(topic.name, topic.id, expected)


def was_replaced(name: str, present: str, expected: str) -> TopicReplaced:
    """Return the error for a topic that has another id than the offsets are of."""
    return TopicReplaced(
        f"topic {name!r} was deleted and created again, or is another cluster's: its id is {present}, was {expected}; "
        "start with a new checkpoint, or set failOnDataLoss=false to read the new topic from its beginning"
    )


class Log(Protocol):
    """Where records lie. Connections are never pickled: every process opens its own."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def topics(self, wanted: Subscription) -> Topics:
        """The topics that are read. Raises UnknownTopic for a name that is none's."""

    def extents(self, topics: Topics) -> dict[TopicPartition, Extent]:
        """Where every partition's log starts and ends."""

    def offsets_at(self, topics: Topics, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offsets whose records are not older than these times (ms); None where there is none."""

    def sizes(self, topics: Topics, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """About how many stored bytes an offset takes from `start` on; nothing for partitions without records there."""

    def limited(self, topics: Topics, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Ends of a batch of about `rows` records."""

    def cut(self, topics: Topics, ranges: list[Range]) -> list[Range]:
        """Ranges that a task reads from one place each, where records lie in several."""

    def behind_gaps(self, topics: Topics, start: Offsets, end: Offsets) -> Offsets:
        """Starts moved up to the first record where offsets do not count records; others as they are."""

    def records(
        self,
        stream: str,
        offsets: Range,
        *,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
        unreadable: Unreadable | None = None,
        topic_id: str = "",
    ) -> "Iterator[pa.RecordBatch]":
        """The records of a range, in order, as Arrow batches with the columns of Spark's Kafka source.

        Raises:
            DataLoss: some of them are gone, with `fail_on_data_loss`.
            TopicReplaced: the topic no longer has the id `topic_id`. Without `fail_on_data_loss` there are no records
                then, unless it was replaced while they were being read.
            CorruptLog: a stored batch cannot be read, and nobody (`unreadable`) is to be told of it instead.
        """


_CHUNK_BYTES: Final = 4 << 20


def decode(
    batches: Iterable[tuple[int, Buffer]], offsets: Range, *, include_headers: bool, unreadable: Unreadable | None
) -> "Iterator[pa.RecordBatch]":
    """The records of the batches (base offset, bytes) that lie in the range.

    A batch that cannot be read is left out whole, whichever record of it is the bad one: a batch that is read again has
    the same rows.

    Raises:
        CorruptLog: a batch cannot be read, and nobody is to be told of it instead.
    """
    from headrace.records import arrow  # noqa: PLC0415  # pyarrow, where records are read and nowhere else

    bounds: dict[str, Any] = {
        "topic": offsets.partition.topic,
        "partition": offsets.partition.partition,
        "first_offset": offsets.start,
        "end_offset": offsets.end,
        "include_headers": include_headers,
    }
    if unreadable is not None:
        for chunk in _chunks(batches):
            yield from _tolerant(chunk, offsets, unreadable, bounds)
        return
    try:
        yield from arrow.decode(batches, **bounds)
    except BatchError as error:
        raise CorruptLog(
            f"{offsets.partition} has a batch that cannot be read, between offsets {offsets.start} and {offsets.end}: "
            f"{error}; set unreadableBatches=skip (the archive: --skip-unreadable) to go on without it"
        ) from error


def _tolerant(
    chunk: list[tuple[int, Buffer]], offsets: Range, unreadable: Unreadable, bounds: dict[str, Any]
) -> "list[pa.RecordBatch]":
    """A chunk's rows: decoded as one, or, when something in it cannot be read, batch by batch."""
    from headrace.records import arrow  # noqa: PLC0415

    try:
        return list(arrow.decode(chunk, **bounds))
    except BatchError:
        rows = []
        for base_offset, batch in chunk:
            try:
                rows += list(arrow.decode([(base_offset, batch)], **bounds))
            except BatchError as error:
                unreadable(offsets.partition, base_offset, bytes(batch), error)
        return rows


def _chunks(batches: Iterable[tuple[int, Buffer]]) -> Iterator[list[tuple[int, Buffer]]]:
    chunk: list[tuple[int, Buffer]] = []
    size = 0
    for base_offset, batch in batches:
        chunk.append((base_offset, batch))
        size += len(batch)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
