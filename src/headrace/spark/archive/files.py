"""Write Parquet files of the archive in Spark tasks, directly from the log.

Small row groups and statistics help readers to find an offset.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.offsets import Range
from headrace.lakehouse.decoders.decoder import Decoding, Values
from headrace.lakehouse.write import data_files
from headrace.lakehouse.write.location import Place, failed
from headrace.lakehouse.write.table import COLUMNS, ArchiveFile, WrittenFile
from headrace.records.traceparents import MOST, NAME, is_traceparent
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.tasks import quarantine


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Source and target of a topic's records. It is sent to the tasks."""

    redis: str
    table: Place
    topic: str
    topic_id: str
    fail_on_data_loss: bool = True
    skip_unreadable: bool = False
    """Skip unreadable batches and save their bytes in the table's folder `_unreadable`."""
    traced: bool = False
    """Collect the traces of records."""
    decoding: Decoding | None = None
    """Typed tables: how values become columns."""
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Value columns of the table."""
    dead: Place | None = None
    """Typed tables: the dead-letter table."""
    aside: Mapping[int, pa.Array] = field(default_factory=dict)
    """By partition: offsets already in the dead-letter table."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Typed tables: columns that the table cannot get, with the reason."""


UNREADABLE: Final = "_unreadable"
"""A folder of the table. Delta's readers and vacuum skip names with this prefix."""


@dataclass(frozen=True)
class Written:
    """Files written for a range."""

    files: tuple[WrittenFile, ...]
    dead: tuple[WrittenFile, ...] = ()
    """Files of the dead-letter table."""
    columns: pa.Schema | None = None
    """Value columns of a typed table."""
    reason: str = ""
    """Why the first record was set aside."""


def write_range(
    destination: Destination, stream: str, offsets: Range, unreadable: list[str], traces: list[str]
) -> Written:
    """Write a range of one partition, if the log still has any of it.

    `unreadable` gets a line for each skipped batch, and `traces` some traces of the records. Records of a typed table
    that cannot be written go to the dead-letter table. If a file fails, the range is written again, with a trial of
    each batch in memory.

    Raise CorruptLog without `skip_unreadable`, DataLoss with `fail_on_data_loss`, StoreUnavailable, TableError.
    """
    told = len(unreadable), len(traces)
    try:
        return _write_once(destination, stream, offsets, unreadable, traces, careful=False)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        if destination.decoding is None:
            raise
        del unreadable[told[0] :], traces[told[1] :]
        return _write_once(destination, stream, offsets, unreadable, traces, careful=True)


def _write_once(
    destination: Destination,
    stream: str,
    offsets: Range,
    unreadable: list[str],
    traces: list[str],
    *,
    careful: bool,
) -> Written:
    with LogReader(destination.redis, committed=True) as log:
        batches = log.records(
            stream,
            offsets,
            include_headers=True,
            fail_on_data_loss=destination.fail_on_data_loss,
            unreadable=quarantine(
                lambda name, batch: destination.table.write(f"{UNREADABLE}/{name}", batch), unreadable.append
            )
            if destination.skip_unreadable
            else None,
            topic_id=destination.topic_id,
        )
        if destination.traced:
            batches = _traced(batches, traces)
        number = offsets.partition.partition
        main = _Series(destination, destination.table, number)
        dead = None if destination.dead is None else _Series(destination, destination.dead, number)
        try:
            values = _write(destination, number, batches, main, dead, careful=careful)
            if values is None or dead is None:
                return Written(main.finish())
            return Written(main.finish(), dead.finish(), values.columns, values.reason)
        except BaseException as error:
            main.abandon()
            if dead is not None:
                dead.abandon()
            if isinstance(error, OSError):
                raise failed(destination.table, "cannot be written", error) from error
            raise


def _write(
    destination: Destination,
    partition: int,
    batches: Iterator[pa.RecordBatch],
    main: "_Series",
    dead: "_Series | None",
    *,
    careful: bool,
) -> Values | None:
    if destination.decoding is None or dead is None:
        for batch in batches:
            main.add(_with_id(batch, destination.topic_id))
        return None
    values = Values(
        destination.decoding, destination.columns, refused=destination.refused, check=_tried if careful else None
    )
    aside = destination.aside.get(partition)
    for batch in batches:
        if aside is not None:
            batch = batch.filter(pc.invert(pc.is_in(batch.column("offset"), aside)))  # noqa: PLW2901
        good, bad = values.split(_with_id(batch, destination.topic_id))
        main.add(good)
        dead.add(bad)
    return values


def _tried(rows: pa.RecordBatch) -> None:
    with data_files.writer(pa.BufferOutputStream(), rows.schema) as writer:
        writer.write_batch(rows)


def _with_id(batch: pa.RecordBatch, topic_id: str) -> pa.RecordBatch:
    arrays = [*batch.columns, pa.repeat(pa.scalar(topic_id), batch.num_rows)]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _traced(batches: Iterator[pa.RecordBatch], traces: list[str]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if len(traces) < MOST:
            headers = batch.column("headers").flatten()
            named = pc.equal(headers.field("key"), NAME)
            for value in headers.field("value").filter(named).unique().slice(0, MOST):
                text = (value.as_py() or b"").decode("latin-1")
                if is_traceparent(text) and text not in traces:
                    traces.append(text)
        yield batch


class _Series:
    def __init__(self, destination: Destination, table: Place, partition: int) -> None:
        self._destination = destination
        self._table = table
        self._partition = partition
        self._open: ArchiveFile | None = None
        self.done: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if self._open is not None and self._open.columns != rows.schema:
            self._end()
        if self._open is None:
            self._open = ArchiveFile(
                self._table, self._destination.topic, self._destination.topic_id, self._partition, rows
            )
        self._open.write(rows)
        if self._open.size >= data_files.FILE_BYTES:
            self._end()

    def finish(self) -> tuple[WrittenFile, ...]:
        self._end()
        return tuple(self.done)

    def abandon(self) -> None:
        if self._open is not None:
            self._open.abandon()
        for file in self.done:
            self._table.delete(file.path)

    def _end(self) -> None:
        if self._open is not None:
            self.done.append(self._open.close())
            self._open = None
