"""Starts Spark once, as tests do, for the JVM to keep its classes: `JAVA_TOOL_OPTIONS=-XX:ArchiveClassesAtExit=FILE`.

A JVM that is given the file (`-XX:SharedArchiveFile`) takes Spark's classes from it, parsed and checked, instead of
from the jars: half of the processors' time that a session takes to start. Where the file does not fit, as for another
Java or other jars, it goes on without.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.spark import session
from headrace.spark.pipelines import run


class _Batch(DataSourceReader):
    """Ten numbers."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(10))


class _Stream(DataSourceStreamReader):
    """The same."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's names
        return {"end": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
        return {"end": 10}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(10))


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "n long"

    def reader(self, schema: Any) -> _Batch:
        return _Batch()

    def streamReader(self, schema: Any) -> _Stream:  # noqa: N802
        return _Stream()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    """Read a batch and a stream, and wait for the JVM to end."""
    spark = session.create("class data", master="local[2]", log_level="off", conf=run.connect_settings())
    gateway: Any = spark.sparkContext._gateway
    spark.dataSource.register(_Source)
    spark.read.format("numbers").load().createOrReplaceTempView("read")
    found = spark.sql("SELECT n % 2 AS odd, count(*) AS rows FROM read GROUP BY 1 ORDER BY 1")
    rows = found.mapInArrow(_same, found.schema).collect()
    assert sorted(tuple(row) for row in rows) == [(0, 5), (1, 5)], rows
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = spark.readStream.format("numbers").load().writeStream.option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).foreachBatch(lambda frame, _: frame.toArrow()).start().awaitTermination(240)
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which ends the JVM
    gateway.proc.wait(240)


if __name__ == "__main__":
    main()
