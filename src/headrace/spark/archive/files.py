"""Parquet files of the archive, written by Spark tasks straight from the log.

One file holds one partition's records in offset order, with small row groups and statistics of offset and timestamp,
so that a reader finds an offset by reading little.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.traceparents import MOST, NAME, is_traceparent
from headrace.spark.archive import layout
from headrace.spark.archive.place import Place, failed
from headrace.spark.archive.table import COLUMNS, WrittenFile
from headrace.spark.log import LogReader
from headrace.spark.plan import Range
from headrace.spark.tasks import quarantine


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where one topic's records come from and go to. Travels to the tasks."""

    redis: str
    table: Place
    topic: str
    topic_id: str
    fail_on_data_loss: bool = True
    skip_unreadable: bool = False
    """Leave out batches that cannot be read; their bytes go into the table's folder `_unreadable`."""
    traced: bool = False
    """Look for the traces that records belong to."""


UNREADABLE: Final = "_unreadable"
"""A folder in the table's; Delta's readers and its vacuum pass over names that begin so."""


def write_range(
    destination: Destination, stream: str, offsets: Range, unreadable: list[str], traces: list[str]
) -> list[WrittenFile]:
    """Write a range of one partition; no file where nothing of it is left in the log.

    Args:
        destination: where to.
        stream: the partition's Redis key.
        offsets: what is written.
        unreadable: gets a line for each batch that was left out.
        traces: gets some of the traces that records belong to, where they are asked for.

    Raises:
        CorruptLog: a batch cannot be read, without `skip_unreadable`.
        DataLoss: part of the range is gone, with `fail_on_data_loss`.
        StoreUnavailable, TableError: the files cannot be written.
    """
    with LogReader(destination.redis) as log:
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
        )
        if destination.traced:
            batches = _traced(batches, traces)
        try:
            return list(_write_files(destination, offsets.partition.partition, batches))
        except OSError as error:
            raise failed(destination.table, "cannot be written", error) from error


def _traced(batches: Iterator[pa.RecordBatch], traces: list[str]) -> Iterator[pa.RecordBatch]:
    """Pass the batches on, and note the traces that their records' headers tell."""
    for batch in batches:
        if len(traces) < MOST:
            headers = batch.column("headers").flatten()
            named = pc.equal(headers.field("key"), NAME)
            for value in headers.field("value").filter(named).unique().slice(0, MOST):
                text = (value.as_py() or b"").decode("latin-1")
                if is_traceparent(text) and text not in traces:
                    traces.append(text)
        yield batch


def _write_files(destination: Destination, partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[WrittenFile]:
    file: _OpenFile | None = None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if file is None:
                file = _OpenFile(destination, partition, batch)
            file.write(batch)
            if file.written >= layout.FILE_BYTES:
                yield file.close()
                file = None
        if file is not None:
            yield file.close()
            file = None
    finally:
        if file is not None:
            file.abandon()


class _OpenFile:
    """A file that is being written. Its name is its own: no attempt ever touches another one's file."""

    def __init__(self, destination: Destination, partition: int, first: pa.RecordBatch) -> None:
        self._destination = destination
        self._partition = partition
        self._start = first.column("offset")[0].as_py()
        self._next = self._start
        self._rows = 0
        self._times: list[tuple[int, int]] = []
        name = f"{self._start:020d}-{uuid.uuid4().hex}.parquet"
        self._relative = f"{destination.topic_id}/{partition}/{name}"
        self._group_rows = layout.group_rows(first)
        self._sink = destination.table.create(self._relative)
        self._writer = layout.writer(self._sink, COLUMNS)

    @property
    def written(self) -> int:
        """Bytes so far, without what the writer holds back."""
        return int(self._sink.tell())

    def write(self, batch: pa.RecordBatch) -> None:
        """Append records that follow those before."""
        rows = batch.num_rows
        whole = batch.append_column("topicId", pa.repeat(pa.scalar(self._destination.topic_id), rows))
        self._writer.write_batch(whole, row_group_size=self._group_rows)
        extremes = pc.min_max(batch.column("timestamp").cast(pa.int64()))
        self._times.append((extremes["min"].as_py(), extremes["max"].as_py()))
        self._next = batch.column("offset")[rows - 1].as_py() + 1
        self._rows += rows

    def close(self) -> WrittenFile:
        """Finish the file and bring it to the disk, or into the store."""
        self._writer.close()
        size = self._destination.table.finish(self._sink)
        return WrittenFile(
            path=self._relative,
            topic=self._destination.topic,
            partition=self._partition,
            start=self._start,
            end=self._next,
            rows=self._rows,
            size=size,
            min_timestamp_ms=min(low for low, _ in self._times) // 1000,
            max_timestamp_ms=max(high for _, high in self._times) // 1000,
        )

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._destination.table.abandon(self._sink, self._relative)
