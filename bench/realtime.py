"""Spark's real-time mode from topic to topic, through Spark's own `format("kafka")`, which Maven fetches.

A producer sends one record at a time, with the time in it. A query copies it to another topic, and a consumer looks how
old it is. The baseline is the same producer and consumer on one topic, without Spark. Maven needs Java.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.apache_kafka import apache_kafka, connector_jars

from bench.machine import client_library, describe
from bench.table import Cell, table
from headrace.spark import session
from headrace.testing import server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S = 0.01
BATCH = "5 minutes"
WARMING = 300
_WAIT_S = 120.0


def latencies(bootstrap: str, source: str, sink: str, count: int, alive: Callable[[], bool]) -> list[float]:
    """Milliseconds from sending to a topic until a consumer has the record of another, which may be the same one."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(sink, 0, 0)])
    found: list[float] = []
    sent = 0
    due = time.monotonic()
    deadline = due + _WAIT_S + (count + WARMING) * EVERY_S
    try:
        while len(found) < count + WARMING:
            if not alive() or time.monotonic() > deadline:
                raise RuntimeError(f"{len(found)} of {sent} records came through")
            # The first record shows that Spark is there: those behind it do not wait for its start.
            if time.monotonic() >= due and sent < count + WARMING and (found or not sent):
                producer.produce(source, b"%d" % time.time_ns())
                sent += 1
                due = max(due + EVERY_S, time.monotonic())
            producer.poll(0)
            message = consumer.poll(0.001)
            if message is not None and message.error() is None:
                found.append((time.time_ns() - int(message.value() or b"")) / 1e6)
    finally:
        consumer.close()
    return found[WARMING:]


def bench(name: str, spark: "SparkSession", bootstrap: str, count: int) -> Iterator[list[Cell]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1) for topic in ("alone", "source", "sink")]).values():
        made.result(60)
    yield row(f"{name}, no Spark", latencies(bootstrap, "alone", "alone", count, lambda: True))
    address = {"kafka.bootstrap.servers": bootstrap}
    stream = spark.readStream.format("kafka").options(**address, subscribe="source", startingOffsets="earliest").load()
    writer = stream.select("value").writeStream.format("kafka").options(**address, topic="sink").outputMode("update")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        writer = writer.option("checkpointLocation", folder)
        query = writer.trigger(realTime=BATCH).start()  # type: ignore[call-overload]  # Spark's overloads lack it
        try:
            yield row(
                f"{name}, real-time mode", latencies(bootstrap, "source", "sink", count, lambda: bool(query.isActive))
            )
        finally:
            query.stop()


def row(name: str, waited: list[float]) -> list[Cell]:
    parts = statistics.quantiles(waited, n=100)
    return [name, statistics.median(waited), parts[89], parts[98], max(waited)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too")
    parser.add_argument("--records", type=int, help="records that count, of each row (3000; quick: 200)")


def run(options: argparse.Namespace) -> None:
    count = options.records or (200 if options.quick else 3_000)
    print(
        describe(
            client=client_library(), spark=version("pyspark"), master="local[2]", batch=BATCH,
            records=f"{count} of each row, one per {EVERY_S * 1000:g} ms",
        ),
        end="\n\n", flush=True,
    )  # fmt: skip
    spark = session.create("headrace bench", master="local[2]", log_level="off", conf={"spark.jars": connector_jars()})
    rows: list[list[Cell]] = []
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(server())
        rows += bench("Headrace", spark, started.kafka, count)
        if options.kafka:
            started.stop()
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
            rows += bench("Kafka", spark, stack.enter_context(apache_kafka(home)).plain, count)
        print(table(["ms", "p50", "p90", "p99", "max"], rows), flush=True)
    spark.stop()
