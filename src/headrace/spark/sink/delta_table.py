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
from headrace.spark.sink.delta_files import DataFile, discard
from headrace.spark.sink.delta_options import DeltaOptions

_ATTEMPTS: Final = 10
_PRIMITIVE: Final = re.compile(r'PrimitiveType\("(\w+)"\)')
"""How delta-rs writes `long`, alone or within another type."""


def prepare(options: DeltaOptions, schema: pa.Schema) -> None:
    """Make the table when there is none; see that rows of this schema fit it.

    Raises:
        TableError: they do not, or the place cannot be used.
    """
    missing = [name for name in options.partition_by if name not in schema.names]
    if missing:
        raise TableError(f"option 'partitionBy' names columns that the rows do not have: {', '.join(missing)}")
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
        table.alter.add_columns(new)
