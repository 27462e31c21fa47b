"""The Delta table that Spark writes to: files by its tasks, and commits by the driver.

Tasks write Parquet files through delta-rs' own object store. The driver creates the table, widens it, and changes it by
commits that are made once.
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
        self._open: dict[Partition, OpenFile] = {}
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
        # It stays among the open ones until it is closed, so that an error leaves it to `abandon`.
        file = self._open[partition]
        size, footer = file.close()
        # The rows are the footer's, to be compared with what was received.
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
"""Properties of a table that say which columns have statistics in all files: by name, or so many from the first."""
_PRIMITIVE: Final = re.compile(r'PrimitiveType\("(\w+)"\)')
"""How delta-rs writes `long`, alone or within another type."""


def prepare(options: DeltaOptions, schema: pa.Schema) -> None:
    """Make the table when there is none; see that rows of this schema fit it.

    Raises:
        TableError: they do not, or the place cannot be used.
    """
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
    """Add the files, and note who wrote which batch, both or neither; False when that batch is in the table already.

    The note is Delta's `txn`: an application and the number of its last batch. The files of a batch that is there
    already are deleted, but for those that the table has: a store may have taken a commit whose answer was lost.

    Raises:
        TableError: the commit was refused, by the store or by others who were quicker ten times.
        StoreUnavailable: the object store does not answer.
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
            failure = error  # another writer committed first: look at the table again
        except (DeltaError, OSError) as error:
            raise failed(place, "was not written", error) from error
        else:
            return True
    raise TableError(f"{place.name} was not written: {one_line(failure)}") from failure


def _again(options: DeltaOptions, table: DeltaTable, files: Sequence[DataFile]) -> bool:
    """A batch that the table has: whether with these files. Those that it does not have are deleted."""
    # By their names, which no two files share: folders of partitions are escaped once more in the table's log.
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
