"""The archive as a Structured Streaming job: started, watched, started anew when its topic was created again."""

import contextlib
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark import errors, session
from headrace.spark.archive import ranges
from headrace.spark.archive.batch import BatchArchiver, BatchResult, Step
from headrace.spark.archive.files import Destination
from headrace.spark.archive.table import ArchiveTable
from headrace.spark.errors import OptionError, SparkError, TopicReplaced
from headrace.spark.groups import GroupCommitter
from headrace.spark.log import LogReader
from headrace.spark.logs import TopicLog
from headrace.spark.plan import Extent, TopicPartition
from headrace.spark.positions import EARLIEST, offsets_json

if TYPE_CHECKING:
    from headrace.tracing import Tracing

_log = logging.getLogger(__name__)

_TASK_ROWS: Final = 500_000
"""A partition with more than this waiting is shared by several tasks, and becomes several files."""
_POLL: Final = "50ms"


@dataclass(frozen=True, kw_only=True)
class ArchiveSettings:
    """What to archive, and how."""

    topic: str
    table: str
    """A local or mounted directory."""
    redis: str
    """The storage URL of the server."""
    kafka: str | None = None
    group: str | None = None
    """The consumer group whose positions follow the table; needs `kafka`, `HOST:PORT`."""
    checkpoint: str | None = None
    """Spark's checkpoint is kept under this directory; None: a temporary one, and the table says where to go on."""
    trigger_s: float = 10.0
    """Records wait at most this long for their commit."""
    min_rows: int = 200_000
    """This many waiting are committed at once."""
    max_rows: int = 2_000_000
    """No commit holds more."""
    skip_lost: bool = False
    """Go on, instead of failing, where retention was faster than the archive."""
    skip_unreadable: bool = False
    """Go on, instead of failing, where a stored batch cannot be read; its bytes go into the table's `_unreadable`."""
    traces: str | None = None
    """URL of an OpenTelemetry receiver, to which the traces of records are continued; needs `headrace[otel]`."""


@dataclass(frozen=True)
class Progress:
    """Where the archive stands after a batch."""

    rows: int
    """Archived since it was started."""
    batch_rows: int
    batch_bytes: int
    """Parquet written by the batch."""
    batch_s: float
    """Duration of the batch."""
    lag: int
    """Records in the log that the table does not have."""
    version: int
    """Of the table."""
    fences: dict[int, int] = field(default_factory=dict)
    """The next offset to archive, by partition."""
    unreadable: tuple[str, ...] = ()
    """A line for each stored batch that this batch could not read and left out."""
    batch_files: int = 0
    """Parquet files added by the batch."""
    group_failed: bool = False
    """Whether the group could not be brought to where the table is; the next batch tries again."""


class Standing(NamedTuple):
    """How far the table is, in offsets of all partitions together."""

    archived: int
    end: int


OnProgress = Callable[[Progress], None]
_STAGE_ERROR: Final = re.compile(r"headrace\.spark(?:\.\w+)*\.(\w+): (.*)")


def run(
    settings: ArchiveSettings,
    *,
    once: bool = False,
    spark: SparkSession | None = None,
    on_progress: OnProgress = lambda _: None,
    on_start: "Callable[[Archive], None]" = lambda _: None,
    step: Step = lambda _: None,
) -> Progress:
    """Archive until everything there was at the start is in the table (`once`), or until interrupted.

    `on_start` is given the running archive; the rest as `start`.

    Raises:
        SparkError: whatever stopped it, in one line.
    """
    archive = start(settings, once=once, spark=spark, on_progress=on_progress, step=step)
    try:
        on_start(archive)
        while not archive.wait(1.0):
            pass
    finally:
        archive.stop()
    return archive.progress


def start(
    settings: ArchiveSettings,
    *,
    once: bool = False,
    spark: SparkSession | None = None,
    on_progress: OnProgress = lambda _: None,
    step: Step = lambda _: None,
) -> "Archive":
    """Begin to archive in the background.

    Args:
        settings: what to archive, and how.
        once: end when everything there was at the start is in the table.
        spark: the session to run in; None: one of its own.
        on_progress: called after every batch, and once before the first, from another thread.
        step: called at each step of a batch, for tests that stop the process there.

    Raises:
        SparkError: it cannot start: unknown topic, unusable table, no Redis, no Kafka listener.
    """
    if (settings.kafka is None) != (settings.group is None):
        raise OptionError("a consumer group and the Kafka address it is committed at go together: give both or neither")
    return Archive(settings, once=once, spark=spark, on_progress=on_progress, step=step)


class Archive:
    """A running archive."""

    def __init__(
        self,
        settings: ArchiveSettings,
        *,
        once: bool,
        spark: SparkSession | None,
        on_progress: OnProgress,
        step: Step,
    ) -> None:
        """See `start`."""
        self._settings = settings
        self._once = once
        self._on_progress = on_progress
        self._step = step
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._query: StreamingQuery | None = None
        self._group = None if settings.group is None else GroupCommitter(str(settings.kafka), settings.group)
        self.progress = Progress(0, 0, 0, 0.0, 0, 0)
        self._tracing: Tracing | None = None
        with contextlib.ExitStack() as held:
            if settings.traces is not None:
                self._tracing = _tracing(settings.traces)
                held.callback(self._tracing.close)
            self._log = held.enter_context(LogReader(settings.redis))
            topic = self._log.topic(settings.topic)  # before a table is made for a mistyped one
            self._table = ArchiveTable(settings.table)
            self._temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="headrace-archive-"))
            self._begin(topic)
            self._spark = session.create("headrace archive", optimize=False) if spark is None else spark
            self._held = held.pop_all()
        self._thread = threading.Thread(target=self._supervise, name="headrace-archive", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when it has not come in time. Raises the SparkError that ended it, if one did."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Stop now; an unfinished batch is left out of the table and comes again next time."""
        self._stopping.set()
        query = self._query
        if query is not None and query.isActive:
            query.stop()
        self._thread.join()
        self._held.close()

    def standing(self) -> Standing:
        """How far the table is just now. Raises SparkError when the storage does not answer."""
        return self._standing(self.progress.fences)

    def _standing(self, fences: Mapping[int, int]) -> Standing:
        extents = self._extents().items()
        # Retention may have taken what the table has: there is nothing to archive below a log start.
        archived = sum(max(extent.start, min(extent.end, fences.get(number, 0))) for number, extent in extents)
        return Standing(archived, sum(extent.end for _, extent in extents))

    def _begin(self, topic: TopicLog) -> None:
        """Take up the topic where the table stands, and bring the group there."""
        self._topic = topic
        self._archiver = BatchArchiver(
            self._table,
            topic.name,
            str(topic.id),
            extents=self._extents,
            group=self._group,
            skip_lost=self._settings.skip_lost,
            step=self._step,
        )
        result = self._archiver.commit_group()
        if result.group_error is not None:  # a group that never worked is a mistake, not an outage
            raise result.group_error
        self._report(result, 0.0)

    def _extents(self) -> dict[int, Extent]:
        topic = self._log.topic(self._settings.topic, expected_id=str(self._topic.id))
        return {one.partition: extent for one, extent in self._log.extents({topic.name: topic}).items()}

    def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._run_query()
                except TopicReplaced:
                    self._begin(self._log.topic(self._settings.topic))
                else:
                    return
        except (PySparkException, Py4JError) as error:
            # Where the JVM itself failed there is no error of PySpark's, only the bridge's.
            self._error = _from_spark(error)
        except Exception as error:  # handed over to whoever waits
            self._error = error

    def _run_query(self) -> None:
        failure: list[SparkError] = []

        def archive_batch(frame: DataFrame, batch_id: int) -> None:  # Spark's signature
            began, began_ns = time.monotonic(), time.time_ns()
            try:
                result = self._archiver.archive(lambda fences: ranges.write(frame, self._destination(), fences))
                self._trace(result, began_ns)
                self._report(result, time.monotonic() - began)
                self._check_group(result)
            except SparkError as error:
                failure.append(error)
                raise

        self._query = self._start_query(archive_batch)
        if self._stopping.is_set():  # asked for before there was a query to stop
            self._query.stop()
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            if not self._stopping.is_set():
                raise (failure[0] if failure else _from_spark(error)) from error

    def _trace(self, result: BatchResult, began_ns: int) -> None:
        """One span for the batch in each trace that its records belong to."""
        if self._tracing is not None and result.traces:
            told: dict[str, str | int] = {
                "messaging.destination.name": self._topic.name,
                "headrace.rows": result.rows,
                "headrace.files": result.files,
                "headrace.table.version": result.version,
            }
            self._tracing.continued(f"archive {self._topic.name}", result.traces, told, began_ns=began_ns)

    def _start_query(self, archive_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        settings = self._settings
        self._spark.dataSource.register(ranges.RangeSource)
        # An idle archive looks for new records this often; Spark's own 10 ms would keep a core busy.
        self._spark.conf.set("spark.sql.streaming.pollingDelay", _POLL)
        options = {
            "redis": settings.redis,
            "subscribe": settings.topic,
            "topicId": str(self._topic.id),
            "startingOffsets": self._starting_offsets(),
            "failOnDataLoss": str(not settings.skip_lost).lower(),
            "maxOffsetsPerTrigger": str(settings.max_rows),
            "maxRecordsPerPartition": str(_TASK_ROWS),
        }
        if not self._once:
            options["minOffsetsPerTrigger"] = str(min(settings.min_rows, settings.max_rows))
            options["maxTriggerDelay"] = f"{max(1, round(settings.trigger_s * 1000))}ms"
        writer = (
            self._spark.readStream.format(ranges.RangeSource.name())
            .options(**options)
            .load()
            .writeStream.foreachBatch(archive_batch)
            .option("checkpointLocation", str(self._checkpoint()))
        )
        return (writer.trigger(availableNow=True) if self._once else writer).start()

    def _starting_offsets(self) -> str:
        """For a query without a checkpoint: where the table stands, the log's start where it has nothing."""
        fences = self.progress.fences
        name = self._topic.name
        return offsets_json(
            {TopicPartition(name, number): fences.get(number, EARLIEST) for number in self._topic.partitions}
        )

    def _checkpoint(self) -> Path:
        """One directory per topic id: offsets of a deleted topic mean nothing to the next of its name."""
        root = self._settings.checkpoint or self._temporary
        return Path(root).absolute() / str(self._topic.id)

    def _destination(self) -> Destination:
        return Destination(
            redis=self._settings.redis,
            table=str(self._table.path),
            topic=self._topic.name,
            topic_id=str(self._topic.id),
            fail_on_data_loss=not self._settings.skip_lost,
            skip_unreadable=self._settings.skip_unreadable,
            traced=self._settings.traces is not None,
        )

    def _check_group(self, result: BatchResult) -> None:
        """A run that ends must not end with the group behind; one that goes on says so and tries again."""
        if result.group_error is not None and self._once:
            raise result.group_error
        if result.group_error is not None:
            _log.warning("%s; the next batch tries again", result.group_error)

    def _report(self, result: BatchResult, seconds: float) -> None:
        standing = self._standing(result.fences)
        self.progress = Progress(
            rows=self.progress.rows + result.rows,
            batch_rows=result.rows,
            batch_bytes=result.size,
            batch_s=seconds,
            lag=standing.end - standing.archived,
            version=result.version,
            fences=result.fences,
            batch_files=result.files,
            group_failed=result.group_error is not None,
            unreadable=result.unreadable,
        )
        self._on_progress(self.progress)


def _tracing(endpoint: str) -> "Tracing":
    from headrace.tracing import Tracing  # noqa: PLC0415  # an extra

    return Tracing(endpoint, "headrace archive")


def _from_spark(error: PySparkException | Py4JError) -> SparkError:
    """The error of ours inside Spark's, which comes as text with a traceback; or Spark's own first line."""
    text = str(error)
    for name, message in reversed(_STAGE_ERROR.findall(text)):
        kind = getattr(errors, name, SparkError)
        return (kind if isinstance(kind, type) and issubclass(kind, SparkError) else SparkError)(message.strip())
    return SparkError(text.strip().splitlines()[0] if text.strip() else type(error).__name__)
