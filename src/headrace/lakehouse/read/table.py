"""Read the Delta table of a topic's archive and rebuild record batches.

The table's log has the offsets and times of each file. Rebuilt batches keep offsets, times, keys and headers, null
included.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from headrace.lakehouse.read.files import FILES, DataFile
from headrace.lakehouse.write.location import Place
from headrace.records.arrow import MAX_BYTES, MAX_ROWS, schema
from headrace.records.build import ArrowRows, build_empty, build_rows
from headrace.records.fallback.encode import ArrowColumn, ArrowHeaders
from headrace.records.fallback.header import HEADER_SIZE
from headrace.topics.archive import Archived, app_id, begin_id
from headrace.topics.errors import ArchiveUnavailable, OffsetOutOfRange
from headrace.topics.model import StoredBatch

T = TypeVar("T")

_MOST_BATCH = 256 << 10
"""Maximum bytes of records in a batch, unless a single record is larger."""


@dataclass(frozen=True)
class Entry:
    """A file with records of one partition, in offset order."""

    path: str
    """Relative to the table."""
    size: int
    """Bytes."""
    first: int
    last: int
    """Its least and its greatest offset."""
    latest_ms: int
    """Its greatest timestamp."""


@dataclass
class _Partition:
    entries: list[Entry] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    start: int = 0
    """Markers and aborted records have no rows, so that the first file may begin later."""
    end: int = 0

    def from_offset(self, offset: int) -> list[Entry]:
        return self.entries[bisect_left(self.lasts, offset) :]


class LakeTable:
    """A topic's records in one table. Not thread-safe."""

    def __init__(self, url: str, topic_id: str) -> None:
        """Open a table, without records of other topics or an earlier one of that name. Raise ArchiveUnavailable."""
        self.url = url
        self._topic_id = topic_id
        self._table: DeltaTable | None = None
        self._filesystem: pa.fs.FileSystem | None = None
        self._partitions: dict[int, _Partition] = {}
        self._look()

    def refresh(self, partitions: Iterable[int] = ()) -> Mapping[int, Archived]:
        """Load the current version and return its content by partition. Raise ArchiveUnavailable.

        Of `partitions`, also those with a fence and without files: all of their archived records were aborted.
        """
        self._look()
        assert self._table is not None
        known = dict(self._partitions)
        for number in partitions:
            if number not in known and (found := self._partition(self._table, number, [])) is not None:
                known[number] = found
        return {number: Archived(each.start, each.end) for number, each in known.items()}

    def _look(self) -> None:
        try:
            if self._table is None:
                self._table = Place(url=self.url).delta()
            else:
                before = self._table.version()
                self._table.update_incremental()
                if self._table.version() == before:
                    return
            self._filesystem = self._filesystem or _folder(self.url)
            self._partitions = self._read_log(self._table)
        except (DeltaError, OSError, pa.ArrowException) as error:
            self._table = None
            raise ArchiveUnavailable(f"the archive {self.url} cannot be read: {_one_line(error)}") from None

    def _read_log(self, table: DeltaTable) -> dict[int, _Partition]:
        actions = pa.table(table.get_add_actions(flatten=True))
        wanted = ["path", "size_bytes", *(f"{edge}.{name}" for edge in ("min", "max") for name in _STATISTICS)]
        if not actions.num_rows:
            return {}
        missing = [name for name in wanted if name not in actions.column_names]
        if missing:
            raise ArchiveUnavailable(f"{self.url} is no archive: its files have no statistics of {missing[0][4:]}")
        found: dict[int, list[Entry]] = {}
        for action in actions.select(wanted).to_pylist():
            if action["min.topicId"] == action["max.topicId"] != self._topic_id:
                continue
            if not _of_one_partition(action):
                raise ArchiveUnavailable(
                    f"the archive {self.url} has a file with several partitions, {action['path']}: it was compacted by "
                    "something else than headrace archive"
                )
            found.setdefault(action["min.partition"], []).append(
                Entry(
                    action["path"],
                    action["size_bytes"],
                    action["min.offset"],
                    action["max.offset"],
                    _milliseconds(action["max.timestamp"]),
                )
            )
        return {number: each for number, some in found.items() if (each := self._partition(table, number, some))}

    def _partition(self, table: DeltaTable, number: int, entries: list[Entry]) -> _Partition | None:
        """Return a partition with these files; None if it has neither files nor a fence."""
        entries.sort(key=lambda entry: entry.first)
        fence = table.transaction_version(app_id(self._topic_id, number))
        if entries:
            first, end = entries[0].first, entries[-1].last + 1
        elif fence is not None:
            # All its files are expired.
            first = end = fence
        else:
            return None
        begin = table.transaction_version(begin_id(self._topic_id, number))
        return _Partition(
            entries,
            [entry.last for entry in entries],
            # Archives of earlier versions do not have it.
            first if begin is None else min(begin, first),
            end if fence is None else max(fence, end),
        )

    def read(self, partition: int, offset: int, end: int, limit: int) -> list[StoredBatch]:
        """Return about `limit` bytes of batches with the records from `offset` to before `end`.

        A range without records is an empty batch, as aborted records and markers have no rows. Raise OffsetOutOfRange
        before the table's start, ArchiveUnavailable after its end or without a file.
        """
        return self._again(lambda: self._read(partition, offset, end, limit))

    def _read(self, partition: int, offset: int, end: int, limit: int) -> list[StoredBatch]:
        found: list[StoredBatch] = []
        size, position = 0, offset
        known = self._known(partition, offset)
        for entry in known.from_offset(offset):
            if entry.first >= end:
                break
            file = self._open(entry)
            for group in file.groups_from(position):
                for stored in batches(file.rows(group), position, end, limit - size, _MOST_BATCH):
                    found.append(stored)
                    size += len(stored.batch)
                    position = stored.next_offset
                    if size + HEADER_SIZE >= limit:
                        return found
        behind = min(end, known.end)
        if not found and offset < behind:
            # Without it, a consumer would stay before the gap.
            return [StoredBatch(offset, behind, build_empty(offset, behind))]
        return found

    def _known(self, partition: int, offset: int) -> _Partition:
        known = self._partitions.get(partition)
        if known is None or offset >= known.end:
            self._look()
            assert self._table is not None
            known = self._partitions.get(partition) or self._partition(self._table, partition, [])
        if known is None or offset >= known.end:
            has = f"ends at offset {known.end}" if known is not None else "has nothing"
            raise ArchiveUnavailable(f"the archive {self.url} {has} of partition {partition}, asked for {offset}")
        if offset < known.start:
            raise OffsetOutOfRange(f"the archive begins at offset {known.start}, asked for {offset}")
        return known

    def _again(self, work: Callable[[], T]) -> T:
        """Refresh the table and retry once if a file was compacted or vacuumed."""
        try:
            try:
                return work()
            except FileNotFoundError:
                self._table = None
                self._look()
                return work()
        except FileNotFoundError as error:
            raise ArchiveUnavailable(f"a file of the archive {self.url} is missing: {_one_line(error)}") from None
        except (OSError, pa.ArrowException, ValueError) as error:
            raise ArchiveUnavailable(f"a file of the archive {self.url} cannot be read: {_one_line(error)}") from None

    def _open(self, entry: Entry) -> DataFile:
        return FILES.open(self.url, entry.path, self._filesystem)

    def first_at(self, partition: int, timestamp: int, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range at or after `timestamp`."""

        def work() -> tuple[int, int] | None:
            for entry in self._within(partition, start, end):
                if entry.latest_ms >= timestamp:
                    found = self._open(entry).first_at(timestamp, start, end)
                    if found is not None:
                        return found
            return None

        return self._again(work)

    def latest(self, partition: int, start: int, end: int) -> tuple[int, int] | None:
        """Return offset and time (ms) of the first record in the range with the largest time."""

        def work() -> tuple[int, int] | None:
            best: tuple[int, int] | None = None
            for entry in self._within(partition, start, end):
                if best is None or entry.latest_ms > best[1]:
                    found = self._open(entry).latest(start, end)
                    if found is not None and (best is None or found[1] > best[1]):
                        best = found
            return best

        return self._again(work)

    def _within(self, partition: int, start: int, end: int) -> Iterable[Entry]:
        known = self._partitions.get(partition, _Partition())
        return (entry for entry in known.from_offset(start) if entry.first < end)

    def start_after(self, partition: int, before_ms: int | None, max_bytes: int | None) -> int:
        """Return a partition's start after files that are older, or exceed `max_bytes`."""
        known = self._partitions.get(partition, _Partition())
        start, kept = known.start, sum(entry.size for entry in known.entries)
        for entry in known.entries:
            old = before_ms is not None and entry.latest_ms < before_ms
            if not old and (max_bytes is None or kept - entry.size < max_bytes):
                return start
            kept -= entry.size
            start = entry.last + 1
        return known.end

    def start(self, partition: int) -> int:
        """Return the offset from which the table has all records of a partition."""
        return self._partitions.get(partition, _Partition()).start

    def scan(self, partition: int, start: int, end: int, *, include_headers: bool) -> Iterator[pa.RecordBatch]:
        """Yield a range's rows, in order, as `records.arrow.schema`. Raise as `read`."""
        position = start
        while position < end:
            found = self._again(partial(self._next_rows, partition, position, end, include_headers=include_headers))
            if found is None:
                return
            position, rows = found
            yield from rows

    def _next_rows(
        self, partition: int, position: int, end: int, *, include_headers: bool
    ) -> tuple[int, list[pa.RecordBatch]] | None:
        kind = schema(include_headers)
        for entry in self._known(partition, position).from_offset(position):
            if entry.first >= end:
                break
            file = self._open(entry)
            for group in file.groups_from(position):
                rows = file.scan(group, kind.names)
                low, high = np.searchsorted(rows["offset"].to_numpy(), [position, end])
                if low < high:
                    wanted = rows.slice(int(low), int(high - low)).cast(kind)
                    most = max(1, min(MAX_ROWS, MAX_BYTES * wanted.num_rows // max(1, wanted.nbytes)))
                    return wanted["offset"][-1].as_py() + 1, wanted.to_batches(max_chunksize=most)
        return None

    def files(self, partition: int, start: int, end: int) -> list[Entry]:
        """Return the files with records of the range."""
        return list(self._within(partition, start, end))


def _folder(url: str) -> pa.fs.FileSystem:
    """delta-rs' file system would hold Python's lock while it waits for an object store."""
    filesystem, path = pa.fs.FileSystem.from_uri("s3://" + url[6:] if url.startswith("s3a://") else url)
    return pa.fs.SubTreeFileSystem(path, filesystem)


_STATISTICS = ("topicId", "partition", "offset", "timestamp")


def _of_one_partition(action: Mapping[str, object]) -> bool:
    return all(action[f"min.{name}"] == action[f"max.{name}"] is not None for name in ("topicId", "partition"))


def _milliseconds(time: object) -> int:
    return int(pa.scalar(time, pa.timestamp("ms", tz="UTC")).value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


_APPEND_TIME = 1
"""`timestampType` of times set by the server."""


def batches(group: pa.Table, offset: int, end: int, limit: int, most: int) -> Iterator[StoredBatch]:
    """Yield the records from `offset` to before `end` as batches of at most `most` bytes.

    Only a single record may exceed that. `group` is in offset order. The batch that reaches `limit` bytes is the last.
    """
    offsets = group["offset"].to_numpy()
    start, stop = np.searchsorted(offsets, [offset, end])
    if start == stop:
        return
    wanted = group.slice(int(start), int(stop - start))
    columns = _columns(wanted)
    for start_of_run, behind, append_time in _runs(wanted):
        first = start_of_run
        while first < behind:
            room = max(1, min(limit - HEADER_SIZE, most))
            following, batch = build_rows(columns, first, behind, append_time=append_time, max_bytes=room)
            place, last = int(offsets[start + first]), int(offsets[start + following - 1])
            yield StoredBatch(place, last + 1, memoryview(batch))
            limit -= len(batch)
            if limit <= HEADER_SIZE:
                return
            first = following


def _runs(rows: pa.Table) -> Iterator[tuple[int, int, bool]]:
    kinds = rows["timestampType"].to_numpy()
    if not kinds.any():
        yield 0, len(kinds), False
        return
    times = pc.cast(rows["timestamp"], pa.int64()).to_numpy()
    changes = (kinds[1:] != kinds[:-1]) | ((kinds[1:] == _APPEND_TIME) & (times[1:] != times[:-1]))
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(kinds)]
    for low, high in pairwise(edges):
        yield low, high, bool(kinds[low] == _APPEND_TIME)


def _columns(rows: pa.Table) -> ArrowRows:
    headers = _one(rows["headers"])
    offsets, times = _one(rows["offset"]), _one(rows["timestamp"])
    return ArrowRows(
        _bytes_column(_one(rows["key"])),
        _bytes_column(_one(rows["value"])),
        None if headers.null_count == len(headers) else _headers_column(headers),
        (offsets.buffers()[1], offsets.offset),
        (times.buffers()[1], times.offset),
    )


def _one(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bytes_column(column: Any) -> ArrowColumn | None:
    if column.null_count == len(column):
        return None
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    validity, edges, data = column.buffers()
    return validity if column.null_count else None, edges, data if data is not None else b"", column.offset


def _headers_column(column: Any) -> ArrowHeaders:
    validity, edges = column.buffers()[:2]
    pairs = column.values
    names, values = pairs.field(0), pairs.field(1)
    return (
        validity if column.null_count else None,
        edges,
        column.offset,
        _bytes_column(names) or _nothing(len(names)),
        _bytes_column(values) or _nothing(len(values)),
    )


def _nothing(rows: int) -> ArrowColumn:
    return bytes((rows + 7) // 8), bytes(4 * (rows + 1)), b"", 0
