"""Stream offset ranges instead of records, as the archive's source.

Records do not pass through the JVM. Offsets, limits and checkpoint are those of `format("headrace")`.
"""

import base64
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headrace.client import offsets as client_offsets
from headrace.client.errors import (
    CorruptLog,
    DataLoss,
    ModuleMissing,
    OptionError,
    SparkError,
    StorageUnavailable,
    StoreUnavailable,
    TableError,
    TaskFailed,
    TopicReplaced,
    one_line,
)
from headrace.client.offsets import Range, TopicPartition
from headrace.lakehouse.write.batch import RangeResult, clip
from headrace.lakehouse.write.table import WrittenFile
from headrace.spark.archive.files import Destination, Written, write_range
from headrace.spark.source import options as source_options
from headrace.spark.source.stream import StoredOffset, StreamReader
from headrace.spark.source.tasks import RangePartition
from headrace.spark.source.topic_log import ids as topic_ids
from headrace.spark.worker import settle
from headrace.text import environment, extras

if TYPE_CHECKING:
    from collections.abc import Iterable

RANGES: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("stream", StringType()),
        StructField("partition", IntegerType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
    ]
)
_RESULT: Final = pa.schema([("result", pa.string())])
_FAILURES: Final = {
    kind.__name__: kind
    for kind in (
        CorruptLog,
        DataLoss,
        ModuleMissing,
        OptionError,
        StorageUnavailable,
        StoreUnavailable,
        TableError,
        TaskFailed,
        TopicReplaced,
    )
}
FENCES: Final = "fences"
"""Internal option: the tables' fences, as JSON like a checkpoint's."""


def fences_json(fences: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> str:
    """Return the option `fences`; `ids` are topic IDs by name."""
    return json.dumps(client_offsets.to_json(fences, ids))


class RangeSource(DataSource):
    """A Headrace stream of ranges to read."""

    @classmethod
    def name(cls) -> str:
        """Return the registered name."""
        return "headrace_ranges"

    def schema(self) -> StructType:
        """Return the columns of a task's range."""
        return RANGES

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's names
        """Return a reader."""
        given = {name: value for name, value in self.options.items() if name != FENCES}
        # Other readers than Kafka's clients cannot leave out aborted records of a table.
        parsed = replace(source_options.parse(given, default_redis=environment.redis_url()), read_committed=True)
        source_options.check_streaming(parsed)
        return RangeReader(parsed, json.loads(self.options.get(FENCES, "{}")))


class RangeReader(StreamReader):
    """A stream reader whose tasks yield their own range."""

    def __init__(self, options: source_options.SourceOptions, fences: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._fences = client_offsets.from_json(fences)
        self._ids = client_offsets.ids_from_json(fences)

    def initialOffset(self) -> StoredOffset:  # noqa: N802  # Spark's name
        """Return the tables' fences, or log starts. Topic IDs in them reveal a recreated topic."""
        found = self._look(now=None)
        first = {one: self._fences.get(one, extent.start) for one, extent in found.items()}
        return client_offsets.to_json(first, {**topic_ids(self._topics), **self._ids})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield one row."""
        settle()
        assert isinstance(partition, RangePartition)
        offsets = partition.offsets
        topic, number = offsets.partition
        columns = [[topic], [partition.stream], [number], [offsets.start], [offsets.end]]
        types = [pa.string(), pa.string(), pa.int32(), pa.int64(), pa.int64()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=RANGES.fieldNames())


Destinations = Mapping[str, Destination]
"""By topic."""


def write(frame: DataFrame, destinations: Destinations, fences: Mapping[TopicPartition, int]) -> list[RangeResult]:
    """Run the tasks of one micro-batch. Raise DataLoss, StorageUnavailable, StoreUnavailable."""
    task = partial(_write_task, dict(destinations), dict(fences))
    rows = frame.mapInArrow(task, "result string").collect()
    return [_decode(row.result) for row in rows]


def _write_task(
    destinations: Destinations, fences: Mapping[TopicPartition, int], batches: "Iterable[pa.RecordBatch]"
) -> Iterator[pa.RecordBatch]:
    settle()
    for batch in batches:
        results = [_write_one(destinations[row["topic"]], fences, row) for row in batch.to_pylist()]
        yield pa.RecordBatch.from_pydict({"result": results}, schema=_RESULT)


def _write_one(destination: Destination, fences: Mapping[TopicPartition, int], row: Mapping[str, object]) -> str:
    """Return a range's result as JSON. Expected errors travel as values, without a traceback."""
    partition = TopicPartition(destination.topic, row["partition"])  # type: ignore[arg-type]
    stream, offsets = str(row["stream"]), Range(partition, row["start"], row["end"])  # type: ignore[arg-type]
    offsets = clip(offsets, fences)
    unreadable: list[str] = []
    traces: list[str] = []
    written = Written(())
    try:
        if offsets.end > offsets.start:
            written = write_range(destination, stream, offsets, unreadable, traces)
    except tuple(_FAILURES.values()) as error:
        return json.dumps({"error": type(error).__name__, "message": str(error)})
    except ImportError as error:
        message = extras.explained(f"Spark's Python worker ({sys.executable})", error)
        return json.dumps({"error": ModuleMissing.__name__, "message": message})
    except Exception as error:
        traceback.print_exc()
        where = f"offsets {offsets.start} to {offsets.end - 1} of {partition} cannot be archived"
        message = f"{where}: {type(error).__name__}: {one_line(error)}"
        return json.dumps({"error": TaskFailed.__name__, "message": message})
    bounds = {"partition": partition, "start": offsets.start, "end": offsets.end}
    columns = None if written.columns is None else base64.b64encode(written.columns.serialize()).decode()
    return json.dumps(
        {
            "offsets": bounds,
            "files": [asdict(file) for file in written.files],
            "dead": [asdict(file) for file in written.dead],
            "columns": columns,
            "reason": written.reason,
            "unreadable": unreadable,
            "traces": traces,
        }
    )


def _decode(text: str) -> RangeResult:
    result = json.loads(text)
    if "error" in result:
        raise _FAILURES.get(result["error"], SparkError)(result["message"])
    bounds = result["offsets"]
    offsets = Range(TopicPartition(*bounds["partition"]), bounds["start"], bounds["end"])
    columns = result["columns"]
    return RangeResult(
        offsets,
        tuple(WrittenFile(**file) for file in result["files"]),
        tuple(result["unreadable"]),
        tuple(result["traces"]),
        dead=tuple(WrittenFile(**file) for file in result["dead"]),
        columns=None if columns is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns))),
        reason=result["reason"],
    )
