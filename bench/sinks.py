"""Rows per second that Spark writes with the two sinks, and the duration of a small micro-batch.

Rows are in Spark's memory, in two partitions. A server on the same machine and a folder receive them. For comparison,
the same run writes the rows into Spark's own Parquet files and into nothing. Spark runs as local[2]. The best of
several iterations counts; for micro-batches, the median without the first ten.
"""

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession

from bench.machine import describe
from bench.spark import Result, best
from bench.table import Cell, ratio, table
from headrace.spark import session
from headrace.testing import Server, server

TARGET = 800_000
FLOOR_MS = 200
PER_BATCH = 1_000
WARMING, QUICK_WARMING = 10, 2
RANDOM = 64
"""Of a value's bytes; the rest is one letter, so that it shrinks to about two thirds."""


def create(broker: Server, name: str, partitions: int = 2) -> str:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, partitions)])[name].result(60)
    return name


def rows(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Rows of `size` bytes each, in Spark's memory."""
    value = f"CAST(concat(sha2(CAST(id AS STRING), 256), repeat('x', {size - RANDOM})) AS BINARY) AS value"
    made = spark.range(0, count, 1, 2).selectExpr(value).cache()
    made.count()
    return made


def writing(spark: SparkSession, broker: Server, count: int, size: int, rounds: int) -> Iterator[list[Cell]]:
    frame = rows(spark, count, size)
    numbers = itertools.count()
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    target = TARGET if size == 100 else None

    def topic() -> None:
        name = create(broker, f"written-{size}-{next(numbers)}")
        options = {"kafka.bootstrap.servers": broker.kafka, "topic": name}
        frame.write.format("headrace").options(**options).mode("append").save()
        admin.delete_topics([name])[name].result(60)

    def folder(write: Callable[[str], Any]) -> Callable[[], None]:
        def into() -> None:
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
                write(f"{place}/t")

        return into

    delta = folder(lambda path: frame.write.format("headrace.delta").mode("append").save(path))
    parquet = folder(lambda path: frame.write.option("compression", "zstd").parquet(path))
    nothing = folder(lambda path: frame.write.format("noop").mode("overwrite").save())
    works = (("topic", topic, target), ("Delta table", delta, None), ("Spark's Parquet", parquet, None))
    for what, work, asked in (*works, ("nothing", nothing, None)):
        yield line(f"write to: {what}", size, count, best(work, rounds), asked)
    frame.unpersist()


def line(what: str, size: int, count: int, result: Result, target: int | None) -> list[Cell]:
    rate = count / result.seconds
    return [what, f"{size} B", rate, rate * size / 1e6, result.cpu_s, target, ratio(rate, target)]


def micro_batches(spark: SparkSession, broker: Server, batches: int, warming: int) -> Iterator[list[Cell]]:
    """The time of batches of 1 000 rows, one right after the other; the first `warming` of them do not count."""
    source = create(broker, "small-batches")
    filled = spark.range(0, PER_BATCH * (batches + warming), 1, 2).selectExpr("repeat('x', 100) AS value")
    options = {"kafka.bootstrap.servers": broker.kafka}
    filled.write.format("headrace").options(**options, topic=source).mode("append").save()
    reading = {**options, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(PER_BATCH)}
    frame = spark.readStream.format("headrace").options(**reading).load().select("value")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(batches + warming))
    sinks = (
        ("topic", "headrace"),
        ("Delta table", "headrace.delta"),
        ("Spark's Parquet", "parquet"),
        ("nothing", "noop"),
    )
    for what, name in sinks:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place:
            into = {} if name == "noop" else {"path": f"{place}/t"}
            if name == "headrace":
                into = {**options, "topic": create(broker, "small-out")}
            query = frame.writeStream.format(name).options(**into)
            query = query.option("checkpointLocation", str(Path(place) / "c"))
            running = query.trigger(availableNow=True).start()
            running.awaitTermination()
            times = [one.durationMs["triggerExecution"] for one in running.recentProgress][warming:]
        taken = statistics.quantiles(times, n=20)
        yield [f"micro-batch to: {what}", len(times), statistics.median(times), taken[-1], FLOOR_MS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, help="rows of 100 B, and a fifth of 1 KiB (2 000 000; quick: 100 000)")
    parser.add_argument("--batches", type=int, help="micro-batches that are measured (100; quick: 10)")
    parser.add_argument("--rounds", type=int, help="rounds of which the best counts (5; quick: 1)")


def run(options: argparse.Namespace) -> None:
    count = options.records or (100_000 if options.quick else 2_000_000)
    rounds = options.rounds or (1 if options.quick else 5)
    print(describe(spark=version("pyspark"), master="local[2]", best_of=f"{rounds} rounds"), end="\n\n", flush=True)
    spark = session.create("headrace bench", master="local[2]", memory="3g")
    with server() as broker:
        found = [*writing(spark, broker, count, 100, rounds), *writing(spark, broker, count // 5, 1024, rounds)]
        head = ["Spark", "value", "rows/s", "MB/s", "CPU s", "asked for", "of that"]
        print(table(head, found), end="\n\n", flush=True)
        batches, warming = (10, QUICK_WARMING) if options.quick else (100, WARMING)
        small = list(micro_batches(spark, broker, options.batches or batches, warming))
        print(table(["of 1 000 rows", "batches", "p50 ms", "p95 ms", "asked for"], small))
