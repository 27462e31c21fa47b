"""Parquet files of a Delta table, written by Spark's tasks through delta-rs' own object store."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from headrace.spark.sink.delta_options import DeltaOptions

_LONGEST_TEXT: Final = 32
"""Longer texts have no statistics: cut, a maximum would no longer be one."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_GROUP_ROWS: Final = 100_000


@dataclass(frozen=True)
class DataFile:
    """A file that was written and is in no table yet."""

    path: str
    """Relative to the table."""
    size: int
    partition: tuple[tuple[str, str | None], ...]
    """Partition columns, as Delta writes their values."""
    stats: str
    """Delta's statistics, JSON."""
    rows: int


def store(options: DeltaOptions) -> pa_fs.FileSystem:
    """The table's folder as a file system."""
    return pa_fs.PyFileSystem(DeltaStorageHandler(options.path, options.storage_options))


def discard(options: DeltaOptions, files: list[DataFile]) -> None:
    """Delete files that were never committed."""
    system = store(options)
    for file in files:
        try:
            system.delete_file(file.path)
        except OSError:  # gone already, or vacuum finds it
            continue


class FileWriter:
    """The files of one task attempt; no other attempt has files of these names."""

    def __init__(self, options: DeltaOptions, schema: pa.Schema) -> None:
        """`schema` has all columns; those that the table is partitioned by are not written into the files."""
        self._options = options
        self._schema = schema
        self._system = store(options)
        self._open: dict[tuple[tuple[str, str | None], ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        for partition, part in self._parts(rows):
            file = self._open.get(partition)
            if file is None:
                file = self._open[partition] = _OpenFile(self._system, partition, part.schema)
            file.write(part)
            if file.size >= self._options.file_bytes:
                self._done.append(self._open.pop(partition).close())

    def finish(self) -> list[DataFile]:
        """Close every file; what was written."""
        self._done += [file.close() for file in self._open.values()]
        self._open.clear()
        return self._done

    def abandon(self) -> None:
        """Leave as little as possible behind."""
        for file in self._open.values():
            self._done.append(file.close())
        self._open.clear()
        discard(self._options, self._done)

    def _parts(self, rows: pa.RecordBatch) -> "Iterator[tuple[tuple[tuple[str, str | None], ...], pa.RecordBatch]]":
        names = self._options.partition_by
        if not names:
            yield (), rows
            return
        keys = pa.Table.from_batches([rows]).select(names).group_by(names).aggregate([]).to_pylist()
        for key in keys:
            mask = None
            for name, value in key.items():
                column = rows.column(name)
                same = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value, column.type))
                same = pc.fill_null(same, False)
                mask = same if mask is None else pc.and_(mask, same)
            part = rows.filter(mask)
            kept = [name for name in part.schema.names if name not in names]
            yield tuple((name, _written(key[name])) for name in names), part.select(kept)


class _OpenFile:
    def __init__(
        self, system: pa_fs.FileSystem, partition: tuple[tuple[str, str | None], ...], schema: pa.Schema
    ) -> None:
        folders = [f"{name}={_NO_VALUE if value is None else quote(value, safe='')}" for name, value in partition]
        self._path = "/".join([*folders, f"part-{uuid.uuid4()}.zstd.parquet"])
        self._partition = partition
        self._sink = system.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", compression_level=1)
        self._rows = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=_GROUP_ROWS)
        self._rows += rows.num_rows

    def close(self) -> DataFile:
        self._writer.close()
        size = self.size
        self._sink.close()
        stats = _statistics(self._writer.writer.metadata)
        return DataFile(self._path, size, self._partition, stats, self._rows)


def _written(value: object) -> str | None:
    """A partition column's value as Delta's log has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _statistics(metadata: pq.FileMetaData) -> str:
    """Rows, and what of the columns is known, as Delta's readers prune by it."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if "." in name:
            continue  # nested columns prune nothing
        found = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(one is None for one in found):
            continue
        if all(one.has_null_count for one in found):
            nulls[name] = sum(one.null_count for one in found)
        bounded = [one for one in found if one.has_min_max]
        if len(bounded) == len([one for one in found if one.num_values]) and bounded:
            smallest, largest = (
                _bound(min(one.min for one in bounded)),
                _bound(max(one.max for one in bounded), up=True),
            )
            if smallest is not None and largest is not None:
                low[name], high[name] = smallest, largest
    return json.dumps({"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _bound(value: object, *, up: bool = False) -> object:
    """A smallest or largest value as JSON; None for what has no place there."""
    if isinstance(value, datetime):
        # The log has milliseconds: what is cut off must not be missed.
        value = value + timedelta(microseconds=999 if up else 0)
        return f"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond // 1000:03d}{'' if value.tzinfo is None else 'Z'}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124  # NaN
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else None
    return value if isinstance(value, int) and not isinstance(value, bool) and not isinstance(value, Decimal) else None
