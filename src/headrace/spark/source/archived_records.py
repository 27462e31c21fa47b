"""Read records that are no longer in Redis from a topic's archive."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.client.errors import DataLoss, StorageUnavailable
from headrace.client.offsets import Range
from headrace.storage.layout.keys import Keyspace
from headrace.topics.archive import STARTS, start_id
from headrace.topics.errors import ArchiveUnavailable, OffsetOutOfRange
from headrace.topics.model import Topic

if TYPE_CHECKING:
    import pyarrow as pa
    import redis

    from headrace.lakehouse.read.table import LakeTable

REMOTE: Final = "remote.storage.enable"
_TASK_BYTES: Final = 128 << 20
"""Approximate Parquet bytes that one task scans."""


@dataclass(frozen=True)
class ArchivedTopic:
    """A topic's archive and the start of each partition in it."""

    id: str
    table: str
    starts: tuple[tuple[int, int], ...]

    @classmethod
    def find(cls, connection: "redis.Redis", topics: Iterable[Topic]) -> "dict[str, Self]":
        """Return the topics' archives, by name. Raise RedisError, ArchiveUnavailable."""
        from headrace.lakehouse.read.catalog import Lake  # noqa: PLC0415  # only where topics are archived

        remote = [topic for topic in topics if topic.config.get(REMOTE, "").strip().lower() == "true"]
        if not remote:
            return {}
        keys = Keyspace()
        documents: Any = connection.hmget(keys.documents(Lake.kind), [str(topic.id) for topic in remote])
        found = {}
        for topic, document in zip(remote, documents, strict=True):
            names = [start_id(str(topic.id), number) for number in range(topic.partitions)]
            starts: Any = connection.hmget(keys.documents(STARTS), names)
            known = tuple((number, int(start)) for number, start in enumerate(starts) if start is not None)
            if document is not None and known:
                found[topic.name] = cls(str(topic.id), Lake().described(document).table, known)
        return found

    def start(self, partition: int, log_start: int) -> int:
        """Return the start of a partition whose log in Redis starts at `log_start`."""
        return min(log_start, dict(self.starts).get(partition, log_start))

    def cut(self, offsets: Range) -> list[Range]:
        """Split a range into ranges of whole files, one task each."""
        with _told():
            files = self._open().files(offsets.partition.partition, offsets.start, offsets.end)
        edges, size = [offsets.start], 0
        for file in files:
            if size >= _TASK_BYTES and file.first > edges[-1]:
                edges.append(file.first)
                size = 0
            size += file.size
        pairs = zip(edges, [*edges[1:], offsets.end], strict=True)
        return [Range(offsets.partition, low, high) for low, high in pairs]

    def first_at(self, partition: int, timestamp: int, end: int) -> int | None:
        """Return the first offset below `end` with a record at or after a time (ms)."""
        start = self.start(partition, end)
        with _told():
            found = self._open().first_at(partition, timestamp, start, end) if start < end else None
        return None if found is None else found[0]

    def records(self, offsets: Range, *, include_headers: bool, fail_on_data_loss: bool) -> "Iterator[pa.RecordBatch]":
        """Return a range's rows, with the columns of Spark's Kafka source.

        Raise StorageUnavailable; with `fail_on_data_loss`, DataLoss if the table starts later.
        """
        place, start = offsets.partition, offsets.start
        with _told():
            table = self._open()
            first = table.start(place.partition)
            if first > start:
                if fail_on_data_loss:
                    raise DataLoss(
                        f"offsets {start} to {min(first, offsets.end) - 1} of {place} are gone, from the log and from "
                        f"the archive {self.table}; set failOnDataLoss=false to go on without them"
                    )
                start = first
            if start < offsets.end:
                yield from table.scan(place.partition, start, offsets.end, include_headers=include_headers)

    def _open(self) -> "LakeTable":
        from headrace.lakehouse.read.catalog import Lake  # noqa: PLC0415

        return Lake().open(self.id, self.table)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (ArchiveUnavailable, OffsetOutOfRange) as error:
        raise StorageUnavailable(str(error)) from None
