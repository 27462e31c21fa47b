"""The table on the driver: made, widened, and changed by commits that are made once."""

import re
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from headrace.client.errors import TableError, one_line
from headrace.lakehouse.write.statistics import can_skip
from headrace.spark.sink.delta_files import DataFile, discard
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.sink.partition_values import check_types

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
