"""`python -m headrace.demo.lakehouse`: archive and copy the topic with Spark, then read the tables."""

import os
import signal
import sys
import threading
import traceback
from types import FrameType

from deltalake import DeltaTable
from pyarrow import dataset
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.errors import SparkError
from headrace.demo import flights
from headrace.demo.flights import Figure, Tally
from headrace.demo.messages import Archive, Archived, Extent, Failed, Queried, Query, SparkReady, Told, asked, tell
from headrace.lakehouse import paths
from headrace.spark import archive, session

_TRIGGER_S = 2.0
_MIN_ROWS = 100_000
_COLUMNS = "value binary, partition int, offset long"
_EVENT = "carrier string, month int, dep_delay int"
_CANCELLED = '"dep_delay":null'
"""In the JSON that the sender writes."""
# Bits of grouping_id() that mark a total.
_NO_CARRIER, _NO_MONTH = 2, 1


class Lakehouse:
    """Executes requests in order."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._archive: archive.Archive | None = None
        self._next_to_it: list[StreamingQuery] = []

    def do(self, wanted: Archive | Query) -> None:
        """Execute a request. Raises SparkError."""
        if isinstance(wanted, Archive):
            self._begin(wanted)
        else:
            self._end_others()
            self.close()
            say(read_tables(self._spark, wanted))

    def close(self) -> None:
        """Stop the archive; the table keeps committed data."""
        if self._archive is not None:
            self._archive.stop()
            self._archive = None

    def _begin(self, wanted: Archive) -> None:
        settings = archive.ArchiveSettings(
            topics=(wanted.topic,),
            table=wanted.table,
            redis=wanted.redis,
            kafka=wanted.kafka,
            group=wanted.group,
            trigger_s=_TRIGGER_S,
            min_rows=_MIN_ROWS,
        )
        self._next_to_it = [name_airlines(self._spark, wanted), copy_cancelled(self._spark, wanted)]
        started = archive.start(settings, spark=self._spark, on_progress=_report)
        self._archive = started
        threading.Thread(target=_watch, args=(started,), name="archive watch", daemon=True).start()

    def _end_others(self) -> None:
        for query in self._next_to_it:
            try:
                query.processAllAvailable()
                query.stop()
            except StreamingQueryException as error:
                raise SparkError(f"a query next to the archive ended: {' '.join(str(error).split())[:500]}") from None


def _records(spark: SparkSession, wanted: Archive) -> DataFrame:
    return (
        spark.readStream.format("headrace")
        .option("redis", wanted.redis)
        .option("subscribe", wanted.topic)
        .option("startingOffsets", "earliest")
        .load()
    )


def name_airlines(spark: SparkSession, wanted: Archive) -> StreamingQuery:
    """Start to write each flight, with its airline's name, into a Delta table."""
    records = _records(spark, wanted)
    events = records.select(f.from_json(f.col("value").cast("string"), _EVENT).alias("event")).select("event.*")
    names = spark.createDataFrame(flights.airlines(), "carrier string, airline string")
    writer = events.join(f.broadcast(names), "carrier", "left").writeStream.format("headrace.delta")
    return (
        writer.option("checkpointLocation", f"{wanted.named}-checkpoint")
        .trigger(processingTime=f"{_TRIGGER_S} seconds")
        .start(wanted.named)
    )


def copy_cancelled(spark: SparkSession, wanted: Archive) -> StreamingQuery:
    """Start to copy each canceled flight into another topic, exactly once."""
    records = _records(spark, wanted).select("key", "value")
    few = records.where(f.col("value").cast("string").contains(_CANCELLED)).coalesce(1)
    return (
        few.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", wanted.kafka)
        .option("topic", wanted.cancelled)
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", f"{wanted.named}-{wanted.cancelled}")
        .trigger(processingTime=f"{_TRIGGER_S} seconds")
        .start()
    )


def read_tables(spark: SparkSession, wanted: Query) -> Queried:
    """Read the archive with Spark, and verify that each record is stored once.

    A separate Delta reader reads the other table.
    """
    delta = DeltaTable(wanted.table)
    files = delta.file_uris()
    records = spark.read.schema(_COLUMNS).parquet(*paths.for_spark(files))
    return Queried(
        extents=_extents(records),
        figures=_figures(records.select(f.from_json(f.col("value").cast("string"), _EVENT).alias("event"))),
        version=delta.version(),
        files=len(files),
        named=_named_figures(wanted.named),
    )


def _extents(records: DataFrame) -> dict[int, Extent]:
    rows = (
        records.groupBy("partition")
        .agg(
            f.count("*"),
            f.count_distinct("offset"),
            f.min("offset"),
            f.max("offset"),
            f.sum(f.crc32("value")),
        )
        .collect()
    )
    return {partition: Extent(*extent) for partition, *extent in rows}


def _figures(events: DataFrame) -> list[tuple[str | None, int | None, Figure]]:
    rows = (
        events.select("event.*")
        .groupBy("carrier", "month")
        .agg(f.count("*").alias("flown"), f.count("dep_delay").alias("departed"), f.sum("dep_delay").alias("delay"))
        .cube("carrier", "month")
        .agg(f.grouping_id(), f.sum("flown"), f.sum("departed"), f.sum("delay"))
        .collect()
    )
    figures = []
    for carrier, month, level, flown, departed, delay in rows:
        # An event without a carrier must not look like the total.
        group = (
            None if level & _NO_CARRIER else str(carrier),
            None if level & _NO_MONTH else -1 if month is None else month,
        )
        figures.append((*group, Figure(flown, departed, delay or 0)))
    return figures


def _named_figures(table: str) -> list[tuple[str | None, int | None, Figure]]:
    tally = Tally()
    # Threads in delta-rs's Python file system can abort a process at its exit.
    for batch in dataset.dataset(paths.decoded(DeltaTable(table).file_uris())).to_batches(
        columns=["airline", "month", "dep_delay"]
    ):
        for airline, month, delay in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            tally.add(airline or "", month, delay)
    return [(*group, figure) for group, figure in tally.figures().items()]


def _report(progress: archive.Progress) -> None:
    version = max((topic.version for topic in progress.topics.values()), default=0)
    say(Archived(progress.rows, progress.lag, version))


def _watch(started: archive.Archive) -> None:
    try:
        started.wait()
    except SparkError as error:
        say(Failed(str(error)))
    except Exception as error:  # otherwise not reported from a thread
        traceback.print_exc()
        say(Failed(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"))


_saying = threading.Lock()


def say(message: Told) -> None:
    """Send a message to the parent; thread-safe."""
    with _saying:
        tell(sys.stdout.buffer, message)


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    """Start Spark, then execute requests on standard input."""
    signal.signal(signal.SIGTERM, _end)
    try:
        spark = session.create("headrace demo", optimize=False)
        java = str(spark._jvm.System.getProperty("java.version"))  # type: ignore[union-attr]
        say(SparkReady(spark.version, java))
        lakehouse = Lakehouse(spark)
        try:
            for line in sys.stdin.buffer:
                lakehouse.do(asked(line))
        finally:
            lakehouse.close()
            spark.stop()
    except SparkError as error:
        say(Failed(str(error)))
        sys.exit(1)
    finally:
        _end_java()


def _end_java() -> None:
    """Kill the session that this process leads: a JVM interrupted during its start survives."""
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)


if __name__ == "__main__":
    main()
