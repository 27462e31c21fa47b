"""Write a Delta table from Spark.

Tasks write Parquet files through delta-rs' object store. The driver creates the table, adds columns, and commits each
batch once.
"""

import re
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.errors import TableError, one_line
from headrace.lakehouse.write.data_files import OpenFile, Statistics, can_skip
from headrace.lakehouse.write.location import Place, failed
from headrace.lakehouse.write.table import Conflict, Snapshot
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.sink.partition_values import Partition, check_types, folder, split

_GROUP_ROWS: Final = 100_000
MOST_OPEN: Final = 100
"""Maximum open files: each takes memory and a file descriptor or an upload."""
HELD_BYTES: Final = 32 << 20
"""Maximum bytes of buffered rows. Small parts would make many row groups."""


@dataclass(frozen=True)
class DataFile:
    """A written file that is not in a table yet."""

    path: str
    """Path relative to the table."""
    size: int
    partition: Partition
    """Partition columns with values as in Delta's log."""
    stats: str
    """Delta's statistics, JSON."""
    rows: int


def check_rows(files: list[DataFile], received: int) -> None:
    """Raise TableError unless the files have all received rows."""
    rows = sum(file.rows for file in files)
    if rows != received:
        raise TableError(
            f"{received} rows were received and {rows} were written to {len(files)} files: nothing was committed; "
            "please report this as a bug, with the types of the columns and the option 'partitionBy'"
        )


class FileWriter:
    """The uniquely named files of one task attempt."""

    def __init__(self, options: DeltaOptions, schema: pa.Schema) -> None:
        """Prepare. `schema` has all columns; files have no partition columns."""
        self._options = options
        self._schema = schema
        self._kept = [name for name in schema.names if name not in options.partition_by]
        self._open: dict[Partition, OpenFile] = {}
        self._held: dict[Partition, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._done: list[DataFile] = []
        self.received = 0
        """Rows so far."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Raise TableError for an invalid partition value."""
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
        """Close and return every file. Raise TableError for a wrong number of rows."""
        self._write_held()
        while self._open:
            self._close(next(iter(self._open)))
        check_rows(self._done, self.received)
        return self._done

    def abandon(self) -> None:
        """Delete the files where possible."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        for done in self._done:
            self._options.place.delete(done.path)

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
            file = self._open[partition] = _open_file(self._options.place, partition, rows.schema)
        file.write(rows, _GROUP_ROWS)
        if file.size >= self._options.file_bytes:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        # Kept until it is closed, so that an error leaves it to `abandon`.
        file = self._open[partition]
        size, footer = file.close()
        # The footer's rows, to compare with those received.
        self._done.append(DataFile(file.path, size, partition, file.statistics.json(footer), footer.num_rows))
        del self._open[partition]


def _open_file(place: Place, partition: Partition, schema: pa.Schema) -> OpenFile:
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    within = folder(partition)
    return OpenFile(
        place,
        f"{within}/{name}" if within else name,
        Statistics(schema),
        lambda sink: pq.ParquetWriter(sink, schema, compression="zstd", compression_level=1),
    )


_ATTEMPTS: Final = 10
_SKIPPING: Final = ("delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols")
"""Properties that name the columns with statistics in all files, or count the leading ones."""
_PRIMITIVE: Final = re.compile(r'PrimitiveType\("(\w+)"\)')
"""delta-rs' form of `long`, alone or within another type."""


def prepare(options: DeltaOptions, schema: pa.Schema) -> None:
    """Create the table if it is missing. Raise TableError if rows of this schema do not fit."""
    _check_partitioning(options, schema)
    place = options.place
    try:
        if not place.holds_table():
            place.make_table(schema, partition_by=options.partition_by)
        _check(options, place.delta(), schema)
    except (DeltaError, OSError) as error:
        raise failed(place, "cannot be a Delta table", error) from error


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
    """Add the files and record the batch atomically. Return False if the table already has it.

    Delta's `txn` records an application and its last batch. Files of an already committed batch are deleted unless the
    table has them, because a store's answer may have been lost.

    Raise StoreUnavailable, or TableError, also after ten conflicts.
    """
    place = options.place
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, dict(file.partition), int(time.time() * 1000), True, file.stats)
        for file in files
    ]
    noted = [Transaction(application, number)] if application is not None else []
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            table = place.delta()
            done = None if application is None else table.transaction_version(application)
            if done is not None and done >= number:
                return _again(options, table, files)
            _widen(options, table, schema)
            Snapshot(place, table).apply(actions, noted, mode="overwrite" if overwrite else "append")
        except (CommitFailedError, Conflict) as error:
            failure = error  # another writer committed first
        except (DeltaError, OSError) as error:
            raise failed(place, "was not written", error) from error
        else:
            return True
    raise TableError(f"{place.name} was not written: {one_line(failure)}") from failure


def _again(options: DeltaOptions, table: DeltaTable, files: Sequence[DataFile]) -> bool:
    # By unique file name: the table's log escapes folders of partitions again.
    there = {_name(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()} if files else set()
    for file in files:
        if _name(file.path) not in there:
            options.place.delete(file.path)
    return any(_name(file.path) in there for file in files)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _check(options: DeltaOptions, table: DeltaTable, schema: pa.Schema) -> None:
    name = options.place.name
    columns = {field.name: str(field.type) for field in table.schema().fields}
    for field in Schema.from_arrow(schema).fields:
        if field.name not in columns:
            if not options.merge_schema:
                raise TableError(
                    f"{name} has no column {field.name!r}: set mergeSchema=true to add it, or name another"
                )
        elif columns[field.name] != str(field.type):
            there, given = (_PRIMITIVE.sub(r"\1", kind) for kind in (columns[field.name], str(field.type)))
            raise TableError(
                f"column {field.name!r} of {name} is {there}, the rows have {given}: cast it, or name another table"
            )
    partitioned = tuple(table.metadata().partition_columns)
    if partitioned != options.partition_by:
        raise TableError(
            f"{name} is partitioned by {', '.join(partitioned) or 'nothing'}: give that as option 'partitionBy'"
        )


def _widen(options: DeltaOptions, table: DeltaTable, schema: pa.Schema) -> None:
    names = {field.name for field in table.schema().fields}
    new = [field for field in Schema.from_arrow(schema).fields if field.name not in names]
    if new and options.merge_schema:
        _skip_by(table, table.schema().to_arrow())
        table.alter.add_columns(new)


def _skip_by(table: DeltaTable, columns: pa.Schema) -> None:
    """Record which columns have statistics in every file before new columns are added.

    Otherwise delta-rs treats a file without a column's statistics as one without nulls.
    """
    if any(name in table.metadata().configuration for name in _SKIPPING) or not table.version():
        return
    partitioned = table.metadata().partition_columns
    names = [one.name for one in pa.schema(columns) if one.name not in partitioned and can_skip(one)]
    chosen = {_SKIPPING[0]: ",".join(names)} if names else {_SKIPPING[1]: "0"}
    table.alter.set_table_properties(chosen, raise_if_not_exists=False)
