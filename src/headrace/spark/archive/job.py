"""Run the archive as a Structured Streaming job, and restart it after temporary errors."""

import contextlib
import hashlib
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client import errors
from headrace.client.errors import (
    CorruptLog,
    DataLoss,
    ModuleMissing,
    OptionError,
    SparkError,
    TableError,
    TaskFailed,
    TopicReplaced,
    UnknownTopic,
)
from headrace.client.offsets import TopicPartition
from headrace.lakehouse.status.counters import Figures, Progress, Standing
from headrace.lakehouse.status.document import Teller, Told
from headrace.lakehouse.write.batch import ArchiveGap, BatchArchiver, BatchResult, Step
from headrace.metrics.runs import State
from headrace.spark import session
from headrace.spark.archive import ranges
from headrace.spark.archive.settings import ArchiveSettings
from headrace.spark.archive.targets import OnNote, Registrar, Targets
from headrace.spark.source.groups import GroupCommitter
from headrace.spark.source.redis_log import LogReader
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.tracing.exporter import TraceExporter


_log = logging.getLogger(__name__)

_TASK_ROWS: Final = 500_000
"""Records of a partition above which several tasks, and files, share it."""
_POLL: Final = "50ms"
_SILENT: Final = ("org.apache.spark.sql.execution.streaming",)
"""It logs the traceback of a failed query, which the archive reports as one line."""
_MASTER: Final = "local[*,4]"
"""Spark retries a task whose Python worker was killed, up to four times."""
_FOR_GOOD: Final = (ModuleMissing, OptionError, UnknownTopic, DataLoss, ArchiveGap, CorruptLog, TableError, TaskFailed)
"""Errors that a retry cannot fix."""
_LONGEST_PAUSE_S: Final = 30.0
_TRIES: Final = 5
"""Attempts without a batch in between, with `once` and for unknown Spark errors."""

OnProgress = Callable[[Progress], None]


class SparkGone(SparkError):
    """The JVM has ended; only a new process can continue."""


def run(
    settings: ArchiveSettings,
    *,
    once: bool = False,
    spark: SparkSession | None = None,
    on_progress: OnProgress = lambda _: None,
    on_note: OnNote = _log.warning,
    on_start: "Callable[[Archive], None]" = lambda _: None,
    step: Step = lambda _: None,
) -> Progress:
    """Archive until the tables have all records present at the start (`once`), or until interrupted.

    `on_start` gets the running archive; other arguments as for `start`. Raise SparkError for the cause of the end.
    """
    archive = start(settings, once=once, spark=spark, on_progress=on_progress, on_note=on_note, step=step)
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
    on_note: OnNote = _log.warning,
    step: Step = lambda _: None,
    reports: bool = True,
) -> "Archive":
    """Start to archive in the background. Raise SparkError if the topic, table, Redis or listener cannot be used.

    `once` ends it when the tables have all records present at the start. `on_note` gets one line for the user per
    event. `reports` reports to the web console, which a supervisor may do instead. Another thread calls `on_progress`
    after every batch and before the first. Tests set `step`.
    """
    settings.check()
    return Archive(
        settings, once=once, spark=spark, on_progress=on_progress, on_note=on_note, step=step, reports=reports
    )


class Archive:
    """A running archive."""

    def __init__(
        self,
        settings: ArchiveSettings,
        *,
        once: bool,
        spark: SparkSession | None,
        on_progress: OnProgress,
        on_note: OnNote,
        step: Step,
        reports: bool,
    ) -> None:
        self._settings = settings
        self._once = once
        self._on_progress = on_progress
        self._on_note = on_note
        self._stopping = threading.Event()
        self._working = threading.Lock()
        """Held while a batch runs."""
        self._ending = threading.Lock()
        """Held during cleanup, because another thread that stops it may then end the process."""
        self._error: Exception | None = None
        self._query: StreamingQuery | None = None
        self.queries = 0
        """Number of streaming queries started."""
        group = None if settings.group is None else GroupCommitter(settings.server(), settings.group)
        self.progress = Progress()
        self._traces: TraceExporter | None = None
        self._figures = Figures()
        self._teller: Teller | None = None
        with contextlib.ExitStack() as held:
            if settings.traces is not None:
                self._traces = _exporter(settings.traces)
                held.callback(self._traces.close)
            log = held.enter_context(LogReader(settings.redis, committed=True))
            registrar = held.enter_context(contextlib.closing(Registrar(settings.redis)))
            self._targets = Targets(settings, log, registrar, on_note)
            self._archiver = BatchArchiver(
                self._targets.current,
                extents=self._targets.extents,
                group=group,
                skip_lost=settings.skip_lost,
                step=step,
            )
            self._temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="headrace-archive-"))
            self._begin()
            self.spark = _session() if spark is None else spark
            self._held = held.pop_all()
        if reports:
            told = Told(settings.redis, settings.table, settings.group, settings.trigger_s)
            self._teller = Teller(told, self._figures, self._looked)
        self._thread = threading.Thread(target=self._supervise, name="headrace-archive", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end and return whether it came. Raise its SparkError."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Stop now. An unfinished batch is repeated next time."""
        self._stopping.set()
        self._stop_query()
        self._thread.join()
        with self._ending:
            if self._teller is not None:
                ended = State.DONE if self._once else State.STOPPED
                self._teller.end(State.FAILED if self._error is not None else ended, str(self._error or ""))
            self._held.close()

    def drain(self) -> None:
        """Stop after the current batch and its group commit."""
        self._stopping.set()
        with self._working:
            pass
        self.stop()

    def standing(self) -> dict[str, Standing]:
        """Return each table's progress. Raise SparkError."""
        return self._targets.standing({name: topic.fences for name, topic in self.progress.topics.items()})

    def _looked(self) -> dict[str, Standing]:
        try:
            return self.standing()
        except SparkError:
            return {}  # the archiving thread reports it

    def _begin(self) -> None:
        self._targets.clear()
        result = self._archiver.commit_group()
        if result.group_error is not None and not self.queries:  # it never worked, so it is a mistake
            raise result.group_error
        self._targets.sync(result)
        self._report(result, 0.0)

    def _supervise(self) -> None:
        try:
            failures = 0
            while not self._stopping.is_set():
                before = self.progress.rows + self.progress.dead
                try:
                    if failures:
                        self._begin()
                    self._run_query()
                except Exception as error:
                    failures = 1 if self.progress.rows + self.progress.dead > before else failures + 1
                    self._take(error, failures)
                else:
                    return
        except Exception as error:
            self._error = error

    def _take(self, error: Exception, failures: int) -> None:
        if isinstance(error, Py4JNetworkError | ConnectionError) or (
            isinstance(error, Py4JError | PySparkException) and not self._java_lives()
        ):
            raise SparkGone("Spark's JVM has ended") from error
        if isinstance(error, PySparkException | Py4JError):
            error = error_from_spark(error)
        if isinstance(error, ImportError):
            error = ModuleMissing(extras.explained("the archive", error))
        if not isinstance(error, SparkError):
            raise error
        if isinstance(error, TopicReplaced) or (isinstance(error, DataLoss) and self._targets.replaced()):
            self._targets.clear()
            return
        if isinstance(error, UnknownTopic | DataLoss) and self._settings.pattern is not None:
            gone = self._targets.gone()
            if gone:
                self._on_note(f"{', '.join(gone)}: deleted; the table stays as it is")
                self._targets.clear()
                return
        if isinstance(error, _FOR_GOOD) or (failures >= _TRIES and (self._once or type(error) is SparkError)):
            raise error
        pause = min(_LONGEST_PAUSE_S, 2.0 ** (failures - 1))
        self._on_note(f"{error}; trying again in {pause:.0f} s")
        self._stopping.wait(pause)

    def _java_lives(self) -> bool:
        try:
            self.spark.sparkContext._jsc.sc().applicationId()
        except Exception:  # the JVM does not answer
            return False
        return True

    def _run_query(self) -> None:
        failure: list[SparkError | ImportError] = []

        def archive_batch(frame: DataFrame, batch_id: int) -> None:
            with self._working:
                if self._stopping.is_set():
                    raise SparkError("stopping")
                began, began_ns = time.monotonic(), time.time_ns()
                try:
                    result = self._archiver.archive(
                        lambda fences: ranges.write(frame, self._targets.destinations(fences), fences.offsets)
                    )
                    self._targets.sync(result)
                    self._trace(result, began_ns)
                    self._report(result, time.monotonic() - began)
                    self._check_group(result)
                except (SparkError, ImportError) as error:
                    failure.append(error)
                    raise

        self._query = self._start_query(archive_batch)
        if self._stopping.is_set():  # requested before a query existed
            self._stop_query()
        try:
            self._query.awaitTermination()
        except PySparkException as error:
            if not self._stopping.is_set():
                raise (failure[0] if failure else error) from error

    def _trace(self, result: BatchResult, began_ns: int) -> None:
        for name, topic in result.topics.items() if self._traces is not None else ():
            told: dict[str, str | int] = {
                "messaging.destination.name": name,
                "headrace.rows": topic.batch_rows,
                "headrace.files": topic.batch_files,
                "headrace.table.version": topic.version,
            }
            traces = result.traces.get(name)
            if traces and self._traces is not None:
                self._traces.continued(f"archive {name}", traces, told, began_ns=began_ns)

    def _stop_query(self) -> None:
        query = self._query
        try:
            if query is not None and query.isActive:
                query.stop()
        except (Py4JError, PySparkException, ConnectionError):
            return

    def _start_query(self, archive_batch: Callable[[DataFrame, int], None]) -> StreamingQuery:
        settings = self._settings
        self.queries += 1
        self.spark.dataSource.register(ranges.RangeSource)
        # Spark's default of 10 ms would use a whole core while idle.
        self.spark.conf.set("spark.sql.streaming.pollingDelay", _POLL)
        options = {
            "redis": settings.redis,
            **({"subscribe": ",".join(settings.topics)} if settings.pattern is None else {}),
            **({"subscribePattern": settings.pattern} if settings.pattern is not None else {}),
            ranges.FENCES: self._fences(),
            "failOnDataLoss": str(not settings.skip_lost).lower(),
            "maxOffsetsPerTrigger": str(settings.max_rows),
            "maxRecordsPerPartition": str(_TASK_ROWS),
        }
        if not self._once:
            options["minOffsetsPerTrigger"] = str(min(settings.min_rows, settings.max_rows))
            options["maxTriggerDelay"] = f"{max(1, round(settings.trigger_s * 1000))}ms"
        writer = (
            self.spark.readStream.format(ranges.RangeSource.name())
            .options(**options)
            .load()
            .writeStream.foreachBatch(archive_batch)
            .option("checkpointLocation", str(self._checkpoint()))
        )
        return (writer.trigger(availableNow=True) if self._once else writer).start()

    def _fences(self) -> str:
        return ranges.fences_json(
            {
                TopicPartition(name, number): offset
                for name, topic in self.progress.topics.items()
                for number, offset in topic.fences.items()
            },
            self._targets.ids,
        )

    def _checkpoint(self) -> Path:
        """Return one directory per set of topics, because a recreated topic has other offsets."""
        if self._settings.checkpoint is None:
            return Path(self._temporary) / str(self.queries)
        ids = ",".join(sorted(self._targets.ids.values()))
        return self._settings.checkpoint_folder / hashlib.sha256(ids.encode()).hexdigest()[:32]

    def _check_group(self, result: BatchResult) -> None:
        """Raise a failed group commit if the run ends; otherwise report it and retry."""
        if result.group_error is not None and self._once:
            raise result.group_error
        if result.group_error is not None:
            self._on_note(f"{result.group_error}; the next batch tries again")

    def _report(self, result: BatchResult, seconds: float) -> None:
        self.progress = Progress(
            rows=self.progress.rows + result.rows,
            dead=self.progress.dead + sum(topic.batch_dead for topic in result.topics.values()),
            batch_s=seconds,
            topics=result.topics,
            group_failed=result.group_error is not None,
        )
        for name, topic in result.topics.items():
            if topic.batch_dead:
                self._on_note(
                    f"{topic.batch_dead:,} records of {name!r} could not be decoded: they are in {topic.dead_table}; "
                    f"the first: {topic.dead_reason}"
                )
        if result.conflicts:
            self._on_note(
                "another archive writes into the same table: each record goes in once, one of the two is idle"
            )
        self._targets.register(result)
        self._figures.took(self.progress)
        if self._teller is not None:
            self._teller.news()
        self._on_progress(self.progress)


def _session() -> SparkSession:
    return session.create("headrace archive", master=_MASTER, optimize=False, silent=_SILENT)


def _exporter(endpoint: str) -> "TraceExporter":
    try:
        from headrace.tracing.exporter import TraceExporter  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ModuleMissing(extras.explained("exporting traces", error)) from None
    return TraceExporter(endpoint, "headrace archive")


_CAUSE: Final = re.compile(r"Caused by: (.+)")
_PYTHON: Final = re.compile(r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|NotImplemented|Invalid)(?:: .*)?$")
"""The end of a Python traceback."""
_PASSING: Final = re.compile(r"(?:\w+\.)*(?:OSError|MemoryError|Py4J\w+|\w*(?:Timeout|Connection|Pipe)\w*)\b")
"""Errors that may not recur."""
_ABSENT: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_STAGE_ERROR: Final = re.compile(r"headrace\.(?:client|lakehouse|spark)(?:\.\w+)*\.(\w+): (.*)")


def error_from_spark(error: PySparkException | Py4JError) -> SparkError:
    """Return Headrace's error from the traceback in Spark's text, or Spark's first line."""
    text = str(error)
    for name, message in reversed(_STAGE_ERROR.findall(text)):
        kind = getattr(errors, name, SparkError)
        return (kind if isinstance(kind, type) and issubclass(kind, SparkError) else SparkError)(message.strip())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return SparkError(type(error).__name__)
    # The last error of a Python worker or of Java is the cause; Spark's first line names only the query.
    causes = [found[1] for line in lines if (found := _CAUSE.match(line)) is not None]
    python = [line for line in lines if _PYTHON.match(line)]
    cause = python[-1] if python else causes[-1] if causes else ""
    if (absent := _ABSENT.search(cause)) is not None:
        failed_import = ModuleNotFoundError(cause, name=absent[1])
        return ModuleMissing(extras.explained("one of Spark's Python processes", failed_import))
    permanent = bool(python) and _PASSING.match(cause) is None
    return (TaskFailed if permanent else SparkError)(f"{lines[0]}: {cause}" if cause not in lines[0] else lines[0])
