"""The Delta table that Spark writes to: files by its tasks, and commits by the driver.

Tasks write Parquet files through delta-rs' own object store. The driver creates the table, widens it, and changes it by
commits that are made once.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.errors import TableError, one_line
from headrace.lakehouse.write.data_files import Statistics, can_skip
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.sink.partition_values import Partition, check_types, folder, split

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


_ATTEMPTS: Final = 10
_SKIPPING: Final = ("delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols")
"""Properties of a table that say which columns have statistics in all files: by name, or so many from the first."""
_PRIMITIVE: Final = re.compile(r'PrimitiveType\("(\w+)"\)')
"""How delta-rs writes `long`, alone or within another type."""


def prepare(options: DeltaOptions, schema: pa.Schema) -> None:
    """Make the table when there is none; see that rows of this schema fit it.

    Raises:
        TableError: they do not, or the place cannot be used.
    """
    _check_partitioning(options, schema)
    try:
        if not DeltaTable.is_deltatable(options.path, options.storage_options):
            DeltaTable.create(
                options.path,
                schema,
                mode="ignore",
                partition_by=list(options.partition_by) or None,
                storage_options=options.storage_options,
            )
        table = _open(options)
        _check(options, table, schema)
    except (DeltaError, OSError) as error:
        raise TableError(f"{options.path} cannot be a Delta table: {one_line(error)}") from error


def _check_partitioning(options: DeltaOptions, schema: pa.Schema) -> None:
    names = options.partition_by
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise TableError(f"option 'partitionBy' names columns that the rows do not have: {', '.join(missing)}")
    if len(set(names)) < len(names):
        raise TableError(f"option 'partitionBy' names a column twice: {', '.join(names)}")
    if len(names) == len(schema.names):
        raise TableError(
            "option 'partitionBy' names all columns, which would leave none for the files: leave at least one out"
        )
    check_types(schema, names)


def commit(
    options: DeltaOptions,
    schema: pa.Schema,
    files: Sequence[DataFile],
    *,
    application: str | None,
    number: int,
    overwrite: bool = False,
) -> bool:
    """Add the files, and note who wrote which batch, both or neither; False when that batch is in the table already.

    The note is Delta's `txn`: an application and the number of its last batch. The files of a batch that is there
    already are deleted, but for those that the table has: a store may have taken a commit whose answer was lost.

    Raises:
        TableError: the commit was refused, by the store or by others who were quicker ten times.
    """
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, dict(file.partition), int(time.time() * 1000), True, file.stats)
        for file in files
    ]
    noted = [Transaction(application, number)] if application is not None else []
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            table = _open(options)
            done = None if application is None else table.transaction_version(application)
            if done is not None and done >= number:
                return _again(options, table, files)
            _widen(options, table, schema)
            table.create_write_transaction(
                actions,
                mode="overwrite" if overwrite else "append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns or None,
                commit_properties=CommitProperties(app_transactions=noted),
            )
        except CommitFailedError as error:
            failure = error  # somebody else committed first: look at the table anew
        except (DeltaError, OSError) as error:
            raise TableError(f"{options.path} was not written: {one_line(error)}") from error
        else:
            return True
    raise TableError(f"{options.path} was not written: {one_line(failure)}") from failure


def _again(options: DeltaOptions, table: DeltaTable, files: Sequence[DataFile]) -> bool:
    """A batch that the table has: whether with these files. Those that it does not have are deleted."""
    # By their names, which no two files share: folders of partitions are escaped once more in the table's log.
    there = {_name(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()} if files else set()
    discard(options, [file for file in files if _name(file.path) not in there])
    return any(_name(file.path) in there for file in files)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _open(options: DeltaOptions) -> DeltaTable:
    return DeltaTable(options.path, storage_options=options.storage_options)


def _check(options: DeltaOptions, table: DeltaTable, schema: pa.Schema) -> None:
    columns = {field.name: str(field.type) for field in table.schema().fields}
    for field in Schema.from_arrow(schema).fields:
        if field.name not in columns:
            if not options.merge_schema:
                raise TableError(
                    f"{options.path} has no column {field.name!r}: set mergeSchema=true to add it, or name another"
                )
        elif columns[field.name] != str(field.type):
            there, given = (_PRIMITIVE.sub(r"\1", kind) for kind in (columns[field.name], str(field.type)))
            raise TableError(
                f"column {field.name!r} of {options.path} is {there}, the rows have {given}: "
                "cast it, or name another table"
            )
    partitioned = tuple(table.metadata().partition_columns)
    if partitioned != options.partition_by:
        raise TableError(
            f"{options.path} is partitioned by {', '.join(partitioned) or 'nothing'}: give that as option 'partitionBy'"
        )


def _widen(options: DeltaOptions, table: DeltaTable, schema: pa.Schema) -> None:
    """Add columns that the rows have and the table has not."""
    names = {field.name for field in table.schema().fields}
    new = [field for field in Schema.from_arrow(schema).fields if field.name not in names]
    if new and options.merge_schema:
        _skip_by(table, table.schema().to_arrow())
        table.alter.add_columns(new)


def _skip_by(table: DeltaTable, columns: pa.Schema) -> None:
    """Note which columns have statistics in every file, before others come that the files lack.

    delta-rs would take a file that has no statistics of a new column for one without a null in it.
    """
    if any(name in table.metadata().configuration for name in _SKIPPING) or not table.version():
        return
    partitioned = table.metadata().partition_columns
    names = [one.name for one in pa.schema(columns) if one.name not in partitioned and can_skip(one)]
    chosen = {_SKIPPING[0]: ",".join(names)} if names else {_SKIPPING[1]: "0"}
    table.alter.set_table_properties(chosen, raise_if_not_exists=False)
