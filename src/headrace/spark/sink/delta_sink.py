"""Implement Spark's sink API: tasks write files, and the driver's `commit` adds them at once.

A stream's commit records the query's ID and the batch's number, so a batch repeated after a crash is skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.client.errors import OptionError, TableError, one_line
from headrace.lakehouse.write.columns import REFUSED
from headrace.spark.sink import delta_options
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.sink.delta_table import DataFile


_QUERY: Final = "sql.streaming.queryId"
APPLICATION: Final = "headrace.delta:"
"""Prefix of the query's ID in the table's `txn`."""


@dataclass
class Written(WriterCommitMessage):
    """A task attempt's files and their batch."""

    files: "list[DataFile]"
    query: str | None
    rows: int
    """Rows that the attempt received."""


class DeltaDataSource(DataSource):
    """The format, write-only: other readers can read the table and its files."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "headrace.delta"

    def schema(self) -> StructType:
        """Return no columns."""
        raise OptionError(
            "format 'headrace.delta' writes; to read a table: "
            "spark.read.parquet(*DeltaTable(path).file_uris()), or Delta's own reader"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer."""
        return TableWriter(self._parsed(), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a streaming writer; `overwrite` is output mode `complete`."""
        parsed = self._parsed()
        if parsed.application is not None:
            raise OptionError("options 'txnAppId' and 'txnVersion' are for batch writes: a stream has its own")
        return TableStreamWriter(parsed, schema, overwrite=overwrite)

    def _parsed(self) -> DeltaOptions:
        return delta_options.parse(self.options)


class _Writer:
    def __init__(self, options: DeltaOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        # On the driver only: executors unpickle a writer.
        from headrace.spark.sink import delta_table  # noqa: PLC0415  # delta-rs, where it is used

        delta_table.prepare(options, self._columns())

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        from headrace.spark.sink.delta_table import FileWriter  # noqa: PLC0415

        settle()
        files = FileWriter(self._options, self._columns())
        try:
            for batch in iterator:
                if batch.num_rows:
                    files.add(batch)
            done = files.finish()
        except BaseException:
            files.abandon()
            raise
        context = TaskContext.get()
        return Written(done, None if context is None else context.getLocalProperty(_QUERY), files.received)

    def _commit(self, messages: "list[WriterCommitMessage | None]", application: str | None, number: int) -> None:
        from headrace.spark.sink import delta_table  # noqa: PLC0415

        written = [message for message in messages if isinstance(message, Written)]
        files = [file for message in written for file in message.files]
        delta_table.check_rows(files, sum(message.rows for message in written))
        if files or self._overwrite:
            columns = self._columns()
            delta_table.commit(
                self._options, columns, files, application=application, number=number, overwrite=self._overwrite
            )

    def _discard(self, messages: "list[WriterCommitMessage | None]") -> None:
        for message in messages:
            for file in message.files if isinstance(message, Written) else ():
                self._options.place.delete(file.path)

    def _columns(self) -> "pa.Schema":
        import pyarrow as pa  # noqa: PLC0415
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        check_columns(self._schema)
        try:
            found = to_arrow_schema(self._schema, timezone="UTC")
        except Exception as error:  # PySpark has several for a type without an Arrow equivalent
            raise TableError(f"the rows have a column that a Delta table cannot hold: {one_line(error)}") from error
        return pa.schema([field.with_nullable(True) for field in found])


class TableWriter(_Writer, DataSourceArrowWriter):
    """A batch write in one commit."""

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Add the files."""
        self._commit(messages, self._options.application, self._options.number or 0)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Delete the files of successful attempts."""
        self._discard(messages)


class TableStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write, with one commit per micro-batch."""

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        """Add the files, unless the table has this batch."""
        query = next((one.query for one in messages if isinstance(one, Written) and one.query), None)
        if query is None and any(isinstance(one, Written) and one.files for one in messages):
            raise TableError("Spark did not report the id of the query, so a repeated batch could not be recognized")
        self._commit(messages, None if query is None else APPLICATION + query, batchId)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        """Keep the files: a failed commit may have succeeded. Vacuum deletes unreferenced ones."""


_HELD: Final = (
    types.BinaryType,
    types.BooleanType,
    types.ByteType,
    types.CharType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FloatType,
    types.IntegerType,
    types.LongType,
    types.ShortType,
    types.StringType,
    types.TimestampType,
    types.TimestampNTZType,
    types.VarcharType,
)
_INSTEAD: Final = (
    (types.VariantType, "cast it to string, or archive the topic with --schema variant"),
    (types.NullType, "cast it to the type that it shall have"),
    (
        (types.DayTimeIntervalType, types.YearMonthIntervalType, types.CalendarIntervalType),
        "write its parts as numbers",
    ),
    (types.TimeType, "cast it to string"),
)


def check_columns(columns: types.StructType) -> None:
    """Raise TableError for columns that Delta lacks, or whose names differ only by case."""
    for name, kind in _columns(columns, ""):
        if isinstance(kind, types.StructType):
            _check_names(kind, name)
        elif not isinstance(kind, (*_HELD, types.ArrayType, types.MapType)):
            hint = next((hint for known, hint in _INSTEAD if isinstance(kind, known)), "cast it to another type")
            raise TableError(f"column {name!r} is {kind.simpleString()}, a type that Delta tables do not have: {hint}")


def _check_names(struct: types.StructType, within: str) -> None:
    seen: dict[str, str] = {}
    for name in struct.names:
        full = f"{within}.{name}" if within else name
        odd = REFUSED.search(name)
        if odd is not None or not name:
            what = f"the character {odd[0]!r}" if odd is not None else "no character"
            raise TableError(
                f"column {full!r} has {what} in its name, which Delta does not allow: give it another name"
            )
        if name.lower() in seen:
            first = seen[name.lower()]
            raise TableError(f"columns {first!r} and {full!r} have one name for Delta, which ignores case: rename one")
        seen[name.lower()] = full


def _columns(kind: types.DataType, name: str) -> Iterator[tuple[str, types.DataType]]:
    yield name, kind
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            yield from _columns(field.dataType, f"{name}.{field.name}" if name else field.name)
    elif isinstance(kind, types.ArrayType):
        yield from _columns(kind.elementType, f"{name}.element")
    elif isinstance(kind, types.MapType):
        yield from _columns(kind.keyType, f"{name}.key")
        yield from _columns(kind.valueType, f"{name}.value")
