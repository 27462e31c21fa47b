"""What Spark's Python workers do once, and who they are that do it."""

import gc
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
