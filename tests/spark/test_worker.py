"""One-time work of Spark's Python workers, and their identification."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark import worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_worker_leaves_its_modules_out_of_collections(spark: "SparkSession") -> None:
    class Cycle:
        itself: object = None

    def in_two_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.settle()
        worker.settle()
        one = Cycle()
        one.itself = one
        seen = weakref.ref(one)
        del one
        gc.collect()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()], "collected": [seen() is None]})

    [row] = spark.range(1).repartition(1).mapInArrow(in_two_tasks, "frozen long, collected boolean").collect()
    assert row.frozen > 10_000
    assert row.collected


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    before = gc.get_freeze_count()
    worker.settle()
    worker.settle()
    assert gc.get_freeze_count() == before


def test_what_every_forked_process_imports_of_a_source_has_no_redis_in_it() -> None:
    """Spark forks one for each question to a source; half of what the import took was redis-py."""
    program = "import pyspark_headrace, pyspark_headrace_delta, sys; sys.exit('redis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_stream_whose_spark_has_gone_says_no_more() -> None:
    program = """
import traceback
from headrace.spark.source.stream import StreamReader

for error in (ValueError("a fault"), EOFError("Spark has closed it")):
    try:
        try:
            raise error
        finally:
            StreamReader(None).stop()
    except Exception:
        traceback.print_exc()
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert "a fault" in said
    assert "Spark has closed it" not in said
