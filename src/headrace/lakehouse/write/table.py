"""Access a Delta table: its columns, its fences, and the commit that changes files and fences together.

A commit's content must be computed from its snapshot. Delta refuses it if another commit has set one of the same `txn`
IDs since then.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import VariantType
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.errors import SparkError, TableError, one_line
from headrace.lakehouse.write import data_files
from headrace.lakehouse.write.data_files import OpenFile, Statistics
from headrace.lakehouse.write.location import Place, failed
from headrace.records.arrow import schema
from headrace.topics.archive import app_id, begin_id

COLUMNS: Final = schema(include_headers=True).append(pa.field("topicId", pa.string()))
"""The columns of the Spark source and the topic's ID: the offsets of a recreated topic start at 0."""
VARIANT: Final = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")])
"""The VARIANT type as delta-rs and readers without the type represent it."""
DEAD_COLUMNS: Final = COLUMNS.append(pa.field("reason", pa.string()))
"""Columns of a dead-letter table: the original records and the reason."""
_KNOWN: Final = ("topic", "partition", "offset", "timestamp", "topicId")
"""Columns with bounds in every file of every archive."""
_SKIPPING: Final = "delta.dataSkippingStatsColumns"
"""Table property: columns that have statistics in all files. Readers skip files only by these.

Files may lack bounds of later columns, and of numbers that are NaN. delta-rs' `to_pyarrow_*` skips a file without
bounds for a filtered column.
"""
_COMMIT_ID: Final = "headraceCommit"
_LOOK_BACK: Final = 50
"""Maximum number of other commits between a commit and the check whether it succeeded."""
_CHECKPOINT_EVERY: Final = "50"
"""Commits between two checkpoints of Delta's log. A reader reads at most this many small files."""


def merged(found: Iterable[pa.Schema]) -> pa.Schema:
    """Merge new columns. Whole numbers become fractions and decimals. Otherwise the first type and spelling applies."""
    kinds: dict[str, tuple[str, pa.DataType]] = {}
    for columns in found:
        for one in columns:
            name, known = kinds.setdefault(one.name.casefold(), (one.name, one.type))
            wider = pa.types.is_float64(one.type) or pa.types.is_decimal128(one.type)
            if name == one.name and pa.types.is_int64(known) and wider:
                kinds[one.name.casefold()] = name, one.type
    return pa.schema(list(kinds.values()))


class Conflict(SparkError):
    """Another process committed first, so this commit is not in the table."""


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file with the records of one partition from `start` to before `end`, in offset order."""

    path: str
    """Path relative to the table."""
    topic: str
    partition: int
    start: int
    end: int
    rows: int
    size: int
    """Bytes."""
    min_timestamp_ms: int
    max_timestamp_ms: int
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Delta's statistics of the other columns: bounds and null counts, JSON texts by column."""


class ArchiveFile:
    """An archive file that is being written."""

    def __init__(self, place: Place, topic: str, topic_id: str, partition: int, first: pa.RecordBatch) -> None:
        self.columns = first.schema
        self.rows = 0
        self._topic = topic
        self._partition = partition
        self._start = self.next = first.column("offset")[0].as_py()
        self._times: list[tuple[int, int]] = []
        self._group_rows = data_files.group_rows(first)
        self._file = OpenFile(
            place,
            f"{topic_id}/{partition}/{self._start:020d}-{uuid.uuid4().hex}.parquet",
            _statistics_of(self.columns),
            lambda sink: data_files.writer(sink, self.columns),
        )

    @property
    def size(self) -> int:
        """Return the bytes so far, without the writer's buffer."""
        return self._file.size

    def write(self, rows: pa.RecordBatch) -> None:
        """Append records in offset order."""
        self._file.write(rows, self._group_rows)
        extremes = pc.min_max(rows.column("timestamp").cast(pa.int64()))
        self._times.append((extremes["min"].as_py(), extremes["max"].as_py()))
        self.next = rows.column("offset")[rows.num_rows - 1].as_py() + 1
        self.rows += rows.num_rows

    def close(self) -> WrittenFile:
        """Finish the file durably."""
        size, footer = self._file.close()
        low, high, nulls, _ = self._file.statistics.parts(footer)
        return WrittenFile(
            path=self._file.path,
            topic=self._topic,
            partition=self._partition,
            start=self._start,
            end=self.next,
            rows=self.rows,
            size=size,
            min_timestamp_ms=min(low for low, _ in self._times) // 1000,
            max_timestamp_ms=max(high for _, high in self._times) // 1000,
            columns={_LOW: low, _HIGH: high, _NULLS: nulls},
        )

    def abandon(self) -> None:
        """Delete the file."""
        self._file.abandon()


class ArchiveTable:
    """A Delta table with records of topics."""

    def __init__(
        self,
        place: Place,
        columns: pa.Schema = COLUMNS,
        *,
        make: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Open the table at `place`, or create it with `columns` and `properties` if `make` is set.

        Raise StoreUnavailable, or TableError for other content, other columns or missing permissions.
        """
        self.place = place
        _create_if_missing(place, columns, properties or {}, make=make)
        try:
            self._table = place.delta()
        except (DeltaError, OSError) as error:
            raise failed(place, "cannot be read as a Delta table", error) from error
        found = dict(self.snapshot().columns())
        if any(found.get(name) != kind for name, kind in _names_and_types(Schema.from_arrow(columns))):
            raise TableError(f"{place.name} is a Delta table with other columns than an archive's: name another path")
        place.check()
        self.note({_SKIPPING: ",".join(_KNOWN)}, once=True)

    def snapshot(self) -> "Snapshot":
        """Return the current version. Earlier snapshots become invalid. Raise TableError, StoreUnavailable."""
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise failed(self.place, "cannot be read as a Delta table", error) from error
        return Snapshot(self.place, self._table)

    def note(self, values: Mapping[str, str], *, once: bool = False) -> None:
        """Set properties; with `once`, only those that have no value. Raise as `snapshot`."""
        while True:
            held = {name: self.noted(name) for name in values}
            changed = {
                name: text for name, text in values.items() if held[name] is None or (held[name] != text and not once)
            }
            if not changed:
                return
            try:
                self._table.alter.set_table_properties(changed, raise_if_not_exists=False)
            except CommitFailedError:
                self.snapshot()  # another writer changed the table
            except (DeltaError, OSError) as error:
                raise failed(self.place, "was not changed", error) from error

    def noted(self, name: str) -> str | None:
        """Return a property of the last loaded version."""
        found = self._table.metadata().configuration.get(name)
        return None if found is None else str(found)

    def widen(self, known: pa.Schema, found: Sequence[pa.Schema]) -> bool:
        """Add columns that `known` lacks. Return whether there were any. Otherwise as `snapshot`."""
        names = {name.casefold() for name in known.names}
        new = [one for one in merged(found) if one.name.casefold() not in names]
        if not new:
            return False
        try:
            self._table.update_incremental()
            there = {one.name.casefold() for one in self._table.schema().fields}
            missing = [one for one in new if one.name.casefold() not in there]
            if missing:
                self._table.alter.add_columns([_field(one) for one in missing])
        except CommitFailedError:
            return True  # another process added some: load the table again
        except (DeltaError, OSError) as error:
            raise failed(self.place, "got no more columns", error) from error
        return True

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Delete uncommitted files."""
        for file in files:
            self.place.delete(file.path)


class Snapshot:
    """One version of the table."""

    def __init__(self, place: Place, table: DeltaTable) -> None:
        self._place = place
        self._table = table

    @property
    def version(self) -> int:
        """Return the Delta version."""
        return int(self._table.version())

    def columns(self) -> list[tuple[str, str]]:
        """Return names and Delta types."""
        return _names_and_types(self._table.schema())

    def arrow(self) -> pa.Schema:
        """Return the columns as an Arrow schema."""
        return pa.schema(self._table.schema().to_arrow())

    def typed(self) -> pa.Schema:
        """Return the value columns."""
        found = self.arrow()
        return pa.schema([one for one in found if one.name not in COLUMNS.names])

    def fences(self, topic_id: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the next offset to archive for each partition that has one."""
        versions = {partition: self._table.transaction_version(app_id(topic_id, partition)) for partition in partitions}
        return {partition: version for partition, version in versions.items() if version is not None}

    def offsets(self, topic_id: str, partition: int, start: int, end: int) -> pa.Array:
        """Return the int64 offsets of a partition's records in the range, unordered. Raise as `snapshot`."""
        files = self._place.files()
        found = [pa.array([], pa.int64())]
        try:
            for file in self.files():
                if not (
                    _may_have(file, "partition", partition, partition) and _may_have(file, "offset", start, end - 1)
                ):
                    continue
                with files.open_input_file(file["path"]) as source:
                    rows = pq.read_table(source, columns=["partition", "offset", "topicId"])
                mine = pc.and_(pc.equal(rows["topicId"], topic_id), pc.equal(rows["partition"], partition))
                within = pc.and_(pc.greater_equal(rows["offset"], start), pc.less(rows["offset"], end))
                found += rows.filter(pc.and_(mine, within))["offset"].chunks
        except (OSError, pa.ArrowException) as error:
            raise failed(self._place, "cannot be read", error) from error
        return pa.concat_arrays(found)

    def paths(self) -> list[str]:
        """Return the files' relative paths."""
        paths: list[str] = pa.table(self._table.get_add_actions(flatten=True)).column("path").to_pylist()
        return paths

    def topics(self) -> set[str]:
        """Return the names of topics in the files."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        names = actions.column("min.topic").unique().to_pylist() if "min.topic" in actions.column_names else []
        return {name for name in names if name is not None}

    def files(self) -> list[dict[str, Any]]:
        """Return the files as in Delta's log: `path`, `size_bytes`, `num_records`, `min.offset` and so on."""
        rows: list[dict[str, Any]] = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return rows

    def commit(
        self,
        topic_id: str,
        files: Iterable[WrittenFile],
        fences: Mapping[int, int],
        starts: Mapping[int, int] | None = None,
    ) -> None:
        """Add the files and set the fences atomically.

        `starts` are first offsets by partition. The first commit of a partition records them, as aborted records have
        no rows.

        Raises:
            Conflict: Another process has set one of these fences since this snapshot.
            StoreUnavailable: The result is unknown; the fences show it.
        """
        held = self.fences(topic_id, fences)
        for partition, offset in fences.items():
            if offset < held.get(partition, 0):
                raise ValueError(f"fence of partition {partition} would fall from {held[partition]} to {offset}")
        transactions = [Transaction(app_id(topic_id, partition), offset) for partition, offset in fences.items()]
        transactions += [
            Transaction(begin_id(topic_id, partition), offset)
            for partition, offset in (starts or {}).items()
            if partition not in held
        ]
        self.apply([add_action(topic_id, file) for file in files], transactions)

    def apply(
        self,
        actions: list[AddAction | RemoveAction],
        transactions: list[Transaction],
        *,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        """Commit actions and `txn` entries. Raise as `commit`."""
        before = self.version
        commit_id = uuid.uuid4().hex
        try:
            self._table.create_write_transaction(
                actions,
                mode=mode,
                schema=self._table.schema(),
                partition_by=self._table.metadata().partition_columns or None,
                commit_properties=CommitProperties(
                    app_transactions=transactions, custom_metadata={_COMMIT_ID: commit_id}
                ),
            )
        except CommitFailedError as error:
            # If a store's answer is lost, delta-rs retries and conflicts with its own commit.
            if not self._went_in(commit_id):
                raise Conflict(one_line(error)) from error
        except (DeltaError, OSError) as error:
            raise failed(self._place, "was not written", error) from error
        self._sync_log(before)

    def _went_in(self, commit_id: str) -> bool:
        try:
            self._table.update_incremental()
            return any(entry.get(_COMMIT_ID) == commit_id for entry in self._table.history(_LOOK_BACK))
        except (DeltaError, OSError) as error:
            raise failed(self._place, "was perhaps not written", error) from error

    def _sync_log(self, version: int) -> None:
        """Sync the commit to disk, because the log may drop these records afterward."""
        path = self._place.path
        if path is None:
            return
        log = path / "_delta_log"
        after = f"{version:020d}.json"
        for entry in [*(path for path in log.glob("*.json") if path.name > after), log]:
            _sync(entry)


def _may_have(file: Mapping[str, Any], column: str, low: int, high: int) -> bool:
    """Other writers may leave out bounds."""
    least, most = file.get(f"min.{column}"), file.get(f"max.{column}")
    return (least is None or least <= high) and (most is None or most >= low)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create_if_missing(place: Place, columns: pa.Schema, own: Mapping[str, str], *, make: bool) -> None:
    path = place.path
    try:
        if (path is None or path.is_dir()) and place.holds_table():
            return
        if not make:
            raise TableError(f"there is no Delta table at {place.name}")
        if path is not None and path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise TableError(f"{place.name} is there and is not a Delta table: name an empty or new directory")
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
        skipping = ",".join((*_KNOWN, "timestampType"))
        properties = {"delta.checkpointInterval": _CHECKPOINT_EVERY, _SKIPPING: skipping, **own}
        place.make_table(columns, description="Records archived by Headrace", properties=properties)
    except (OSError, DeltaError) as error:
        raise failed(place, "cannot be a table", error) from error


def _field(column: pa.Field) -> Field:
    """The first VARIANT raises the table's reader requirements."""
    if column.type == VARIANT:
        return Field(column.name, VariantType())
    return Schema.from_arrow(pa.schema([column])).fields[0]


def _names_and_types(schema: Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema.fields]


def add_action(topic_id: str, file: WrittenFile, *, data_change: bool = True) -> AddAction:
    """Return a file's add action, with statistics."""
    low = {
        "topic": json.dumps(file.topic),
        "partition": str(file.partition),
        "offset": str(file.start),
        "timestamp": _instant(file.min_timestamp_ms),
        "topicId": json.dumps(topic_id),
    }
    high = low | {"offset": str(file.end - 1), "timestamp": _instant(file.max_timestamp_ms)}
    nulls = dict.fromkeys(low, "0")
    parts = [own | file.columns.get(name, {}) for own, name in ((low, _LOW), (high, _HIGH), (nulls, _NULLS))]
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=data_change,
        stats=data_files.written(file.rows, *parts),
    )


def _statistics_of(columns: pa.Schema) -> Statistics:
    variants = {column.name for column in columns if column.type == VARIANT}
    return Statistics(columns, leave_out=frozenset(variants | set(_KNOWN)))


_LOW: Final = "minValues"
_HIGH: Final = "maxValues"
_NULLS: Final = "nullCount"


def _instant(timestamp_ms: int) -> str:
    microseconds = max(data_files.INSTANTS[0], min(data_files.INSTANTS[1], timestamp_ms * 1000))
    return data_files.instant(microseconds, COLUMNS.field("timestamp").type, up=False)
