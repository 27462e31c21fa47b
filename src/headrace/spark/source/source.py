"""Implement Spark's data source API for `format("headrace")`.

Spark pickles these objects to the executors. A partition holds all that `read` needs, without connections.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
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

from headrace.client import offsets
from headrace.client.errors import OptionError
from headrace.client.offsets import Extent, Offsets, TopicPartition
from headrace.spark.sink import sink
from headrace.spark.sink.exactly_once import ExactlyOnceWriter
from headrace.spark.sink.sink import SinkOptions, TopicStreamWriter, TopicWriter
from headrace.spark.source import offset_bounds
from headrace.spark.source import options as source_options
from headrace.spark.source.offset_bounds import EARLIEST, LATEST, AtOffsets, Everywhere
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.stream import StreamReader, of_present_topics
from headrace.spark.source.tasks import RangePartition, extents, open_log, plan_tasks, read_records, with_storage
from headrace.spark.source.topic_log import Log, Topics, check_id
from headrace.text import environment

if TYPE_CHECKING:
    import pyarrow as pa

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


class HeadraceDataSource(DataSource):
    """The format. Spark creates and pickles one for every read."""

    @classmethod
    def name(cls) -> str:
        """Return the name."""
        return "headrace"

    def schema(self) -> StructType:
        """Return the columns. Raise OptionError before anything runs."""
        parsed = self._parsed()
        return StructType([*COLUMNS.fields, HEADERS] if parsed.include_headers else COLUMNS.fields)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        parsed = self._parsed()
        source_options.check_batch(parsed)
        self._check_schema(schema)
        return BatchReader(with_storage(parsed))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return a streaming reader."""
        parsed = self._parsed()
        source_options.check_streaming(parsed)
        self._check_schema(schema)
        return StreamReader(with_storage(parsed))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer."""
        if overwrite:
            raise OptionError("records cannot be overwritten: write with mode('append')")
        parsed = self._sink(schema)
        if parsed.exactly_once:
            raise OptionError("deliveryGuarantee=exactly-once is for streams: a repeated batch write has no number")
        sink.check_topic(parsed)
        return TopicWriter(parsed)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return a streaming writer; `overwrite` is output mode `complete`."""
        del overwrite
        parsed = self._sink(schema)
        return ExactlyOnceWriter(parsed) if parsed.exactly_once else TopicStreamWriter(parsed)

    def _sink(self, schema: StructType) -> SinkOptions:
        parsed = sink.parse(self.options)
        sink.check_schema(schema, parsed)
        return parsed

    def _parsed(self) -> SourceOptions:
        return source_options.parse(self.options, default_redis=environment.redis_url())

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("format 'headrace' has fixed columns: leave .schema(...) out")


class BatchReader(DataSourceReader):
    """A batch read, whose offsets are fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raise SparkError."""
        options = self._options
        with open_log(options) as log:
            topics = log.topics(options.subscription)
            if options.topic_id is not None:
                for topic in topics.values():
                    check_id(topic, options.topic_id)
            options = of_present_topics(options, topics)
            start, end = batch_offsets(options, log, topics, extents(options, log, topics))
            return plan_tasks(options, log, topics, start, end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield the records of one task. Without tasks, Spark runs one without a range."""
        if type(partition) is InputPartition:
            return iter(())
        assert isinstance(partition, RangePartition)
        return read_records(partition)


def batch_offsets(
    options: SourceOptions, log: Log, topics: Topics, found: Mapping[TopicPartition, Extent]
) -> tuple[Offsets, Offsets]:
    """Return the bounds of a batch read, per partition.

    Raise DataLoss with failOnDataLoss, OptionError if a start is above its end or JSON has other partitions.
    """

    def look_up(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return log.offsets_at(topics, times)

    starting = options.starting or Everywhere(EARLIEST)
    ending = options.ending or Everywhere(LATEST)
    start = offset_bounds.resolve("starting", starting, found, look_up=look_up, strategy=options.strategy)
    end = offset_bounds.resolve("ending", ending, found, look_up=look_up)
    for partition, offset in start.items():
        # Only two explicit offsets can be in the wrong order.
        if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets) and end[partition] < offset:
            raise OptionError(f"startingOffsets {offset} of {partition} is above endingOffsets {end[partition]}")
    start = offsets.within_log(start, found, fail_on_data_loss=options.fail_on_data_loss)
    end = offsets.within_log(end, found, fail_on_data_loss=options.fail_on_data_loss)
    return start, {partition: max(offset, start[partition]) for partition, offset in end.items()}
