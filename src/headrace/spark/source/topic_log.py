"""Define access to a topic's log for Redis and for any Kafka cluster.

Stored batches are decoded to Arrow here.
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
"""Called for an unreadable batch with its partition, base offset, bytes and error."""


@dataclass(frozen=True)
class Subscription:
    """The partitions to read, by exactly one of the three fields."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression for whole topic names."""
    assigned: tuple[TopicPartition, ...] = ()

    def wants(self, name: str) -> bool:
        """Return whether `pattern` matches this topic name."""
        return self.pattern is not None and re.fullmatch(self.pattern, name) is not None

    def named(self) -> tuple[str, ...]:
        """Return the topics that must exist."""
        return self.names or tuple(dict.fromkeys(partition.topic for partition in self.assigned))

    def chosen(self, extents: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, Extent]:
        """Return the selected partitions. Raise OptionError for a missing one."""
        if not self.assigned:
            return dict(extents)
        missing = sorted(set(self.assigned) - set(extents))
        if missing:
            raise OptionError(f"option 'assign' names partitions that do not exist: {', '.join(map(str, missing))}")
        return {partition: extents[partition] for partition in self.assigned}


@dataclass(frozen=True)
class TopicLog:
    """Description of a topic for readers."""

    name: str
    id: str
    """Empty if the cluster has no IDs."""
    partitions: tuple[int, ...]
    streams: tuple[str, ...] = ()
    """Each partition's Redis key, if any."""
    archive: ArchivedTopic | None = None
    """The archive of records that are no longer in Redis."""
    bits: int | None = None
    """Native topics: bits of an offset for the entry ID's sequence. Such offsets do not count records."""

    def stream(self, partition: int) -> str:
        """Return the partition's Redis key, or ""."""
        return self.streams[partition] if self.streams else ""


Topics = Mapping[str, TopicLog]


def ids(topics: Topics) -> dict[str, str]:
    """Return topic IDs by name, where they exist."""
    return {name: topic.id for name, topic in topics.items() if topic.id}


def check_id(topic: TopicLog, expected: str) -> None:
    """Raise TopicReplaced if the topic has another ID."""
    if topic.id != expected:
        raise was_replaced(topic.name, topic.id, expected)


def was_replaced(name: str, present: str, expected: str) -> TopicReplaced:
    """Return the error for offsets of another topic ID."""
    return TopicReplaced(
        f"topic {name!r} was deleted and created again, or is another cluster's: its id is {present}, was {expected}; "
        "start with a new checkpoint, or set failOnDataLoss=false to read the new topic from its beginning"
    )


class Log(Protocol):
    """Access to records. Connections are never pickled."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def topics(self, wanted: Subscription) -> Topics:
        """Return the topics. Raise UnknownTopic if a named one does not exist."""

    def extents(self, topics: Topics) -> dict[TopicPartition, Extent]:
        """Return each partition's log start and end offset."""

    def offsets_at(self, topics: Topics, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offsets at or after these times (ms), or None without such a record."""

    def sizes(self, topics: Topics, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the approximate stored bytes per offset from `start`, for partitions with records."""

    def limited(self, topics: Topics, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Return ends of a batch of about `rows` records."""

    def cut(self, topics: Topics, ranges: list[Range]) -> list[Range]:
        """Return ranges that a task reads from one place each."""

    def behind_gaps(self, topics: Topics, start: Offsets, end: Offsets) -> Offsets:
        """Return starts moved to the first record where offsets do not count records."""

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
        """Return a range's records, in order, with the columns of Spark's Kafka source.

        Raises:
            DataLoss: Some of them are gone, with `fail_on_data_loss`.
            TopicReplaced: The topic's ID is not `topic_id`. Without `fail_on_data_loss`, the result is empty instead,
                unless the topic was replaced during the read.
            CorruptLog: A stored batch cannot be read, without an `unreadable` callback.
        """


_CHUNK_BYTES: Final = 4 << 20


def decode(
    batches: Iterable[tuple[int, Buffer]], offsets: Range, *, include_headers: bool, unreadable: Unreadable | None
) -> "Iterator[pa.RecordBatch]":
    """Return the records in the range from batches (base offset, bytes).

    An unreadable batch is left out completely, so that a repeated read has the same rows. Without an `unreadable`
    callback, raise CorruptLog.
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
