"""What Spark asks the sink for: tasks write files, the driver's `commit` adds them to the table in one go.

A stream's batch is noted in the table by the query's id and the batch's number, in the same commit as its files.
One that comes again, after a crash between the commit and Spark's own note of it, is found there and left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace.client.errors import OptionError, TableError, one_line
from headrace.spark.sink import delta_options
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.worker import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.sink.delta_files import DataFile

_QUERY: Final = "sql.streaming.queryId"
APPLICATION: Final = "headrace.delta:"
"""Before the query's id in the table's `txn`."""


@dataclass
class Written(WriterCommitMessage):
    """The files of a task attempt, and whose batch they are of."""

    files: "list[DataFile]"
    query: str | None
    rows: int
    """What the attempt received."""


class DeltaDataSource(DataSource):
    """The format. It writes only: any Delta reader reads the table, and every Parquet reader its files."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "headrace.delta"

    def schema(self) -> StructType:
        """Nothing to read."""
        raise OptionError(
            "format 'headrace.delta' writes; to read a table: "
            "spark.read.parquet(*DeltaTable(path).file_uris()), or Delta's own reader"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A batch write."""
        return TableWriter(self._parsed(), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """A streaming write; `overwrite` is output mode `complete`."""
        parsed = self._parsed()
        if parsed.application is not None:
            raise OptionError("options 'txnAppId' and 'txnVersion' are for batch writes: a stream has its own")
        return TableStreamWriter(parsed, schema, overwrite=overwrite)

    def _parsed(self) -> DeltaOptions:
        return delta_options.parse(self.options)


class _Writer:
    """What both writers do."""

    def __init__(self, options: DeltaOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        # On the driver only: a writer that arrives at an executor was unpickled, not made.
        from headrace.spark.sink import delta_table  # noqa: PLC0415  # delta-rs, where it is used

        delta_table.prepare(options, self._columns())

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Write a task's rows to files that nobody refers to yet."""
        from headrace.spark.sink.delta_files import FileWriter  # noqa: PLC0415

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
        from headrace.spark.sink.delta_files import check_rows  # noqa: PLC0415

        written = [message for message in messages if isinstance(message, Written)]
        files = [file for message in written for file in message.files]
        check_rows(files, sum(message.rows for message in written))
        if files or self._overwrite:
            columns = self._columns()
            delta_table.commit(
                self._options, columns, files, application=application, number=number, overwrite=self._overwrite
            )

    def _discard(self, messages: "list[WriterCommitMessage | None]") -> None:
        from headrace.spark.sink.delta_files import discard  # noqa: PLC0415

        discard(self._options, [file for one in messages if isinstance(one, Written) for file in one.files])

    def _columns(self) -> "pa.Schema":
        import pyarrow as pa  # noqa: PLC0415
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

        from headrace.spark.sink import delta_columns  # noqa: PLC0415

        delta_columns.check(self._schema)
        try:
            found = to_arrow_schema(self._schema, timezone="UTC")
        except Exception as error:  # PySpark has several classes for a type without an Arrow twin
            raise TableError(f"the rows have a column that a Delta table cannot hold: {one_line(error)}") from error
        return pa.schema([field.with_nullable(True) for field in found])


class TableWriter(_Writer, DataSourceArrowWriter):
    """A batch write: all of it in one commit."""

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Add the files."""
        self._commit(messages, self._options.application, self._options.number or 0)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Delete the files of the attempts that ended well."""
        self._discard(messages)


class TableStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write: each micro-batch in one commit, each once."""

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        """Add the files, unless the table has this query's batch already."""
        query = next((one.query for one in messages if isinstance(one, Written) and one.query), None)
        if query is None and any(isinstance(one, Written) and one.files for one in messages):
            raise TableError("Spark did not say which query writes, so a batch could not be told from one before it")
        self._commit(messages, None if query is None else APPLICATION + query, batchId)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        """A commit that raised may have been made: its files stay, and vacuum takes those that nobody refers to."""
