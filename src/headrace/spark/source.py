"""`format("headrace")`: what Spark asks a data source for, answered for one topic.

Spark makes the objects here on the driver and pickles them to the executors; whatever `read` needs is inside the
partition it is given, and connections never travel.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace import settings
from headrace.spark import options as source_options
from headrace.spark import plan
from headrace.spark.errors import DataLoss, GroupCommitFailed, OptionError
from headrace.spark.groups import GroupCommitter
from headrace.spark.log import LogReader, TopicLog
from headrace.spark.options import EARLIEST, LATEST, SourceOptions
from headrace.spark.plan import Extent, Offsets, Range

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.02
"""Spark asks an idle query for its latest offset every 10 ms; Redis is asked at most this often."""
_COMMIT_RETRY_S: Final = 10.0
"""How long a query goes on without trying to commit its group again after the Kafka door failed."""

COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""The columns of Spark's Kafka source, in its order."""
HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)


class RangePartition(InputPartition):
    """One task: a range of one partition's offsets, with all that reading it takes."""

    def __init__(self, options: SourceOptions, stream: str, offsets: Range) -> None:
        self.options = options
        self.stream = stream
        self.offsets = offsets

    def __repr__(self) -> str:
        """Without the options: their storage URL may hold a password."""
        return f"{self.options.topic}-{self.offsets.partition}[{self.offsets.start}, {self.offsets.end})"


class HeadraceDataSource(DataSource):
    """The format. Spark makes one for every read, and pickles it to wherever it is needed."""

    @classmethod
    def name(cls) -> str:
        """The name in `format(...)`."""
        return "headrace"

    def schema(self) -> StructType:
        """The columns; raises OptionError for options that do not fit, before anything runs."""
        parsed = self._parsed()
        return StructType([*COLUMNS.fields, HEADERS] if parsed.include_headers else COLUMNS.fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        parsed = self._parsed()
        source_options.check_batch(parsed)
        self._check_schema(schema)
        return BatchReader(parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """A streaming read."""
        parsed = self._parsed()
        source_options.check_streaming(parsed)
        self._check_schema(schema)
        return StreamReader(parsed)

    def _parsed(self) -> SourceOptions:
        return source_options.parse(self.options, default_redis=settings.redis_url())

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("format 'headrace' has fixed columns: leave .schema(...) out")


def _tasks(
    options: SourceOptions, log: LogReader, topic: TopicLog, start: Offsets, end: Offsets
) -> list[InputPartition]:
    # Offsets of native topics do not count records: tasks of so many records at most there are not.
    most = options.max_records_per_partition if topic.bits is None else None
    ranges = plan.split(log.behind_gaps(topic, start, end), end, at_least=options.min_partitions, max_records=most)
    # The gap before the first record is part of what was read: whoever looks at ranges finds none missing.
    seen: set[int] = set()
    for place, item in enumerate(ranges):
        if item.partition not in seen:
            ranges[place] = Range(item.partition, start[item.partition], item.end)
            seen.add(item.partition)
    return [RangePartition(options, topic.streams[item.partition], item) for item in ranges]


def read_records(partition: RangePartition) -> Iterator["pa.RecordBatch"]:
    """The records of one task as Arrow batches; runs on the executors."""
    options = partition.options
    with LogReader(options.redis) as log:
        yield from log.records(
            options.topic,
            partition.stream,
            partition.offsets,
            include_headers=options.include_headers,
            fail_on_data_loss=options.fail_on_data_loss,
        )


class BatchReader(DataSourceReader):
    """A batch read: the offsets are settled when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """The tasks.

        Raises:
            UnknownTopic, DataLoss, OptionError, StorageUnavailable.
        """
        options = self._options
        with LogReader(options.redis) as log:
            topic = log.topic(options.topic, expected_id=options.topic_id)
            extents = log.extents(topic)
            start, end = batch_offsets(options, extents)
            return _tasks(options, log, topic, start, end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The records of one task."""
        assert isinstance(partition, RangePartition)
        return read_records(partition)


def batch_offsets(options: SourceOptions, extents: Mapping[int, Extent]) -> tuple[Offsets, Offsets]:
    """From where to where a batch read goes, per partition.

    Raises:
        DataLoss: an offset outside the log, with failOnDataLoss.
        OptionError: a start above its end, or JSON that does not fit the partitions.
    """
    loss = {"fail_on_data_loss": options.fail_on_data_loss}
    starting = EARLIEST if options.starting is None else options.starting
    ending = LATEST if options.ending is None else options.ending
    start = plan.resolve("startingOffsets", starting, extents)
    end = plan.resolve("endingOffsets", ending, extents)
    for partition, offset in start.items():
        # Only offsets that were both written down can be the wrong way round; elsewhere the log decides.
        if isinstance(starting, dict) and isinstance(ending, dict) and 0 <= end[partition] < offset:
            raise OptionError(
                f"startingOffsets {offset} of {options.topic}-{partition} is above endingOffsets {end[partition]}"
            )
    start = plan.within_log(options.topic, start, extents, **loss)
    end = plan.within_log(options.topic, end, extents, **loss)
    return start, {partition: max(offset, start[partition]) for partition, offset in end.items()}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. One object per running query, in a process of its own on the driver.

    Spark calls `latestOffset` with the end of the batch before only once that batch is complete, so this is where
    the group's positions are committed: `commit` comes a batch late, and never for the last one.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._log: LogReader | None = None
        self._committer: GroupCommitter | None = None
        self._topic_id = options.topic_id
        self._topic: TopicLog | None = None
        self._extents: dict[int, Extent] = {}
        self._looked_at = float("-inf")
        self._batch_at = float("-inf")
        self._target: Offsets | None = None
        self._committed: Offsets | None = None
        self._commit_after = float("-inf")

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the executors: no connections."""
        return {**self.__dict__, "_log": None, "_committer": None}

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802  # Spark's name
        """Where a new query starts."""
        starting = LATEST if self._options.starting is None else self._options.starting
        return self._json(plan.resolve("startingOffsets", starting, self._look(now=None)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """What `maxOffsetsPerTrigger` says."""
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Note where the log ends now: this run goes no further."""
        self._target = {partition: extent.end for partition, extent in self._look(now=None).items()}

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, dict[str, int]]:
        """Where the next batch ends; `start` itself when there is nothing to do.

        Raises:
            DataLoss: the query stands at offsets the log does not have any more.
            TopicReplaced: the topic was deleted and created again.
        """
        now = time.monotonic()
        extents = self._look(now=now)
        if start is None:  # Spark 4.1 and older say neither
            return self._json({partition: extent.end for partition, extent in extents.items()})
        position = plan.from_json(self._options.topic, start)
        self._commit_group(position, now)
        unlimited = limit is None or isinstance(limit, ReadAllAvailable)
        end = self._next_end(position, extents, None if unlimited else limit)
        if end == position or (self._waits(position, end, now) and not unlimited):
            return start
        self._batch_at = now
        return self._json(end)

    def _next_end(self, position: Offsets, extents: Mapping[int, Extent], limit: ReadLimit | None) -> Offsets:
        self._check_partitions(position, extents)
        if self._target is not None:
            # What was added after the run began is left to the next one, or the run would never end.
            extents = {number: extent for number, extent in extents.items() if number in self._target | position}
        begin = plan.within_log(
            self._options.topic,
            plan.with_new_partitions(position, extents),
            extents,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        end = {number: extent.end for number, extent in extents.items()}
        if self._target is not None:
            end = {number: min(offset, self._target.get(number, begin[number])) for number, offset in end.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if most is not None and self._topic is not None and self._topic.bits is not None and self._log is not None:
            return self._log.limited(self._topic, begin, end, most)
        return plan.limit(begin, end, most)

    def _check_partitions(self, position: Offsets, extents: Mapping[int, Extent]) -> None:
        gone = sorted(set(position) - set(extents))
        if gone and self._options.fail_on_data_loss:
            raise DataLoss(
                f"partitions {gone} of {self._options.topic} are gone: the topic was created again with fewer; "
                "start with a new checkpoint, or set failOnDataLoss=false"
            )

    def _waits(self, position: Offsets, end: Offsets, now: float) -> bool:
        """Whether minOffsetsPerTrigger holds this batch back; under availableNow nothing does."""
        fewest = self._options.min_offsets
        if fewest is None or self._target is not None:
            return False
        rows = sum(offset - position.get(number, offset) for number, offset in end.items())
        return rows < fewest and (now - self._batch_at) * 1000 < self._options.max_delay_ms

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802  # Spark's name
        """The log's end, which Spark shows in the query's progress."""
        return self._json({number: extent.end for number, extent in self._look(now=time.monotonic()).items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one batch; after a restart also of one that was planned before it."""
        options = self._options
        extents = self._look(now=None)
        last = plan.from_json(options.topic, end)
        known = {number: extents[number] for number in last if number in extents}
        self._check_partitions(last, extents)
        first = plan.within_log(
            options.topic,
            plan.with_new_partitions(plan.from_json(options.topic, start), known),
            known,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        assert self._log is not None
        assert self._topic is not None
        return _tasks(options, self._log, self._topic, first, {number: last[number] for number in known})

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The records of one task."""
        assert isinstance(partition, RangePartition)
        return read_records(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark will not ask for offsets below `end` again."""
        self._commit_group(plan.from_json(self._options.topic, end), time.monotonic())

    def _look(self, *, now: float | None) -> dict[int, Extent]:
        """Where the log starts and ends; with `now`, at most `_POLL_S` old."""
        if now is not None and now - self._looked_at < _POLL_S:
            return self._extents
        if self._log is None:
            self._log = LogReader(self._options.redis)
        topic = self._log.topic(self._options.topic, expected_id=self._topic_id)
        self._topic_id, self._topic = str(topic.id), topic
        self._extents = self._log.extents(topic)
        self._looked_at = time.monotonic()
        return self._extents

    def _commit_group(self, position: Offsets, now: float) -> None:
        options = self._options
        if options.group is None or options.bootstrap_servers is None:
            return
        done = self._committed
        if done is not None and all(done.get(number, -1) >= offset for number, offset in position.items()):
            return
        if now < self._commit_after:
            return
        if self._committer is None:
            self._committer = GroupCommitter(options.bootstrap_servers, options.group)
        try:
            self._committer.commit(options.topic, position)
        except GroupCommitFailed as error:
            if done is None:
                raise  # a group that never worked is a mistake in the options, not an outage
            _log.warning("%s; the next attempt is in %.0f s", error, _COMMIT_RETRY_S)
            self._commit_after = now + _COMMIT_RETRY_S
        else:
            self._committed = position

    def _json(self, offsets: Offsets) -> dict[str, dict[str, int]]:
        return plan.to_json(self._options.topic, offsets)
