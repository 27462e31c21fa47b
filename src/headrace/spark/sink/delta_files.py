"""Parquet files of a Delta table, written by Spark's tasks through delta-rs' own object store."""

import contextlib
import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from headrace.client.errors import TableError
from headrace.lakehouse.write.statistics import Statistics
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.sink.partition_values import Partition, folder, split

_GROUP_ROWS: Final = 100_000
MOST_OPEN: Final = 100
"""Files that stay open while more rows are awaited: each takes memory, and a file descriptor or an upload."""
HELD_BYTES: Final = 32 << 20
"""Rows of partitions wait for others of theirs up to this many bytes: many small parts would make many row groups."""


@dataclass(frozen=True)
class DataFile:
    """A file that was written and is in no table yet."""

    path: str
    """Relative to the table."""
    size: int
    partition: Partition
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


def check_rows(files: list[DataFile], received: int) -> None:
    """Raise TableError when files do not have as many rows as were received."""
    rows = sum(file.rows for file in files)
    if rows != received:
        raise TableError(
            f"{received} rows were received and {rows} were written to {len(files)} files: nothing was committed; "
            "please report this as a bug, with the types of the columns and the option 'partitionBy'"
        )


class FileWriter:
    """The files of one task attempt; no other attempt has files of these names."""

    def __init__(self, options: DeltaOptions, schema: pa.Schema) -> None:
        """`schema` has all columns; those that the table is partitioned by are not written into the files."""
        self._options = options
        self._schema = schema
        self._kept = [name for name in schema.names if name not in options.partition_by]
        self._system = store(options)
        self._open: dict[Partition, _OpenFile] = {}
        self._held: dict[Partition, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._done: list[DataFile] = []
        self.received = 0
        """Rows so far."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows. Raises TableError for a value that cannot be a partition's."""
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        self.received += rows.num_rows
        names = self._options.partition_by
        if not names:
            self._write((), rows)
            return
        for partition, part in split(rows, names):
            self._held.setdefault(partition, []).append(part.select(self._kept))
        self._held_bytes += rows.nbytes
        if self._held_bytes >= HELD_BYTES:
            self._write_held()

    def finish(self) -> list[DataFile]:
        """Close every file; what was written. Raises TableError when that is not what was received."""
        self._write_held()
        while self._open:
            self._close(next(iter(self._open)))
        check_rows(self._done, self.received)
        return self._done

    def abandon(self) -> None:
        """Leave as little as possible behind."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        discard(self._options, self._done)

    def _write_held(self) -> None:
        for partition, parts in self._held.items():
            [rows] = pa.Table.from_batches(parts).combine_chunks().to_batches()
            self._write(partition, rows)
            if len(self._open) > MOST_OPEN:
                self._close(partition)
        self._held.clear()
        self._held_bytes = 0

    def _write(self, partition: Partition, rows: pa.RecordBatch) -> None:
        file = self._open.get(partition)
        if file is None:
            file = self._open[partition] = _OpenFile(self._system, partition, rows.schema)
        file.write(rows)
        if file.size >= self._options.file_bytes:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        # It stays among the open ones until it is closed, so that an error leaves it to `abandon`.
        self._done.append(self._open[partition].close())
        del self._open[partition]


class _OpenFile:
    def __init__(self, system: pa_fs.FileSystem, partition: Partition, schema: pa.Schema) -> None:
        name = f"part-{uuid.uuid4()}.zstd.parquet"
        within = folder(partition)
        self._path = f"{within}/{name}" if within else name
        self._partition = partition
        self._system = system
        self._sink = system.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd", compression_level=1)
        self._statistics = Statistics(schema)

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write_batch(rows, row_group_size=_GROUP_ROWS)
        self._statistics.add(rows)

    def close(self) -> DataFile:
        self._writer.close()
        size = self.size
        self._sink.close()
        # The file's own number, to be compared with what was received.
        footer = self._writer.writer.metadata
        return DataFile(self._path, size, self._partition, self._statistics.json(footer), footer.num_rows)

    def abandon(self) -> None:
        """Delete the file, whatever state it is in."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._sink.close()
        with contextlib.suppress(OSError):
            self._system.delete_file(self._path)
