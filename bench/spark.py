"""Records per second that Spark reads and archives.

A log of two partitions is in a Valkey on the same machine, in batches of about 64 KiB, as from a producer under load.
Spark runs as local[2] on the same cores. The best of several iterations counts. CPU seconds are those of Python and the
JVM together, and are more reliable than elapsed time on a shared machine. Each figure is compared with its goal, with
reading the same log without Spark, and with Spark's own Parquet sink for the same rows. The last figures are the delay
from a producer to `foreachBatch`, and the memory of Spark's processes.
"""

import argparse
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.storage import BareStorage, bare_storage

from bench.machine import describe
from bench.processes import spark_memory_mb, tree_cpu_s
from bench.table import Cell, ratio, table
from headrace.client.offsets import Range
from headrace.records.build import build
from headrace.spark import session
from headrace.spark.archive import ArchiveSettings
from headrace.spark.archive import run as run_archive
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription
from headrace.testing import Server, server
from headrace.topics.model import Topic

PARTITIONS = 2
BATCH_BYTES = 64 << 10
NOW = 1_700_000_000_000
EVERY_S = 0.1
WARMING, QUICK_WARMING = 10, 2
VISIBLE_MS = 250.0


class Load(NamedTuple):
    name: str
    topic: str
    value_bytes: int
    records: int
    read_target: int
    archive_target: int


class Result(NamedTuple):
    seconds: float
    cpu_s: float


def values(size: int, count: int) -> list[bytes]:
    """JSON of exactly `size` bytes, half of it random hexadecimal: shrinks to about half, as events do."""
    chance = random.Random(size)
    made = []
    for number in range(count):
        head = b'{"id":%d,"carrier":"UA","origin":"EWR","delay":%d,"trace":"' % (number, number % 61)
        noise = chance.randbytes(size // 4).hex().encode()
        made.append((head + noise + b"x" * size)[: size - 2] + b'"}')
    return made


def fill(storage: BareStorage, load: Load) -> Topic:
    topic = storage.create_topic(load.topic, PARTITIONS)
    per_batch = BATCH_BYTES // load.value_bytes
    pool = values(load.value_bytes, per_batch * 40)
    batches = [
        bytes(
            build(
                [(b"%d" % number, value, NOW + number, ()) for number, value in enumerate(pool[low : low + per_batch])]
            )
        )
        for low in range(0, len(pool), per_batch)
    ]
    for number in range(load.records // per_batch):
        storage.append_batch(topic, number % PARTITIONS, batches[number % len(batches)])
    return topic


def cpu_of_session() -> float:
    """CPU seconds of this process and all under it but Valkey: Python here, the JVM, Spark's workers."""
    return tree_cpu_s(os.getpid(), without="valkey")


def best(work: Callable[[], object], rounds: int) -> Result:
    results = []
    for _ in range(rounds):
        cpu, clock = cpu_of_session(), time.perf_counter()
        work()
        results.append(Result(time.perf_counter() - clock, cpu_of_session() - cpu))
    return min(results)


def row(what: str, load: Load, records: int, result: Result, target: int | None) -> list[Cell]:
    rate = records / result.seconds
    return [what, load.name, rate, rate * load.value_bytes / 1e6, result.cpu_s, target, ratio(rate, target)]


def bench(storage: BareStorage, broker: Server, load: Load, topic: Topic, rounds: int) -> Iterator[list[Cell]]:
    spark = session.create("headrace bench", master="local[2]", memory="2g")
    with LogReader(storage.url) as log:
        extents = log.extents(log.topics(Subscription(names=(load.topic,))))
        records = sum(extent.end for extent in extents.values())

        def read_plainly() -> None:
            for partition, extent in extents.items():
                for _ in log.records(topic.streams[partition.partition], Range(partition, 0, extent.end)):
                    pass

        yield row("no Spark, one process", load, records, best(read_plainly, rounds), None)
    reader = spark.read.format("headrace").option("subscribe", load.topic)
    frame = reader.option("redis", storage.url).load()
    reading = best(lambda: frame.write.format("noop").mode("overwrite").save(), rounds)
    yield row("batch read to noop", load, records, reading, load.read_target)
    through = spark.read.format("headrace").option("subscribe", load.topic)
    asked = through.option("kafka.bootstrap.servers", broker.kafka).load()
    reading = best(lambda: asked.write.format("noop").mode("overwrite").save(), rounds)
    yield row("by the Kafka protocol", load, records, reading, load.read_target // 2)

    def archive() -> None:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            settings = ArchiveSettings(topics=(load.topic,), table=f"{folder}/t", redis=storage.url)
            assert run_archive(settings, once=True, spark=spark).rows == records

    yield row("archive, whole run", load, records, best(archive, rounds), load.archive_target)

    def parquet_sink() -> None:
        """What Spark itself would do of it: its own file sink, which only readers of its log see right after a kill."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            source = spark.readStream.format("headrace").option("redis", storage.url).option("subscribe", load.topic)
            wanted = {"startingOffsets": "earliest", "includeHeaders": "true", "maxOffsetsPerTrigger": "2000000"}
            rows = source.options(**wanted).load()
            sink = rows.writeStream.format("parquet").option("compression", "zstd")
            sink = sink.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True)
            query = sink.start(f"{folder}/t")
            query.awaitTermination()

    yield row("Spark's Parquet sink", load, records, best(parquet_sink, rounds), None)


def visible(broker: Server, count: int, warming: int) -> list[Cell]:
    """How long from a record's sending until `foreachBatch` has it: p50 and p95. The first `warming` do not count."""
    name = "bench-visible"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, 1)])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    spark = session.create("headrace bench", master="local[2]", memory="2g")
    waited: list[float] = []
    looked = threading.Event()

    def look(frame: Any, _batch_id: int) -> None:
        values = [float(row.value) for row in frame.select("value").collect()]
        now = time.time() * 1000
        waited.extend(now - value for value in values)
        looked.set()

    source = spark.readStream.format("headrace").options(redis=broker.storage, subscribe=name)
    frame = source.option("startingOffsets", "earliest").load()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        query = frame.writeStream.foreachBatch(look).option("checkpointLocation", folder).start()
        try:
            for number in range(count + warming):
                producer.produce(name, b"%f" % (time.time() * 1000))
                producer.flush(60)
                if not number:
                    looked.wait(60)
                time.sleep(EVERY_S)
            while len(waited) < count + warming and query.isActive:
                time.sleep(EVERY_S)
        finally:
            query.stop()
    kept = waited[warming:]
    return ["visible in foreachBatch", statistics.median(kept), statistics.quantiles(kept, n=20)[-1], VISIBLE_MS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records", type=int, help="records of 100 B, and an eighth of 1 KiB (8 000 000; quick: 200 000)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 1024], choices=(100, 1024), help="bytes of a value"
    )
    parser.add_argument("--rounds", type=int, help="rounds of which the best counts (5; quick: 2)")


def run(options: argparse.Namespace) -> None:
    count = options.records or (200_000 if options.quick else 8_000_000)
    rounds = options.rounds or (2 if options.quick else 3)
    loads = [
        Load("100 B", "bench-100", 100, count, 2_500_000, 1_000_000),
        Load("1 KiB", "bench-1024", 1024, count // 8, 600_000, 200_000),
    ]
    print(describe(spark=version("pyspark"), master="local[2]", best_of=f"{rounds} rounds"), end="\n\n", flush=True)
    with bare_storage() as storage:
        # Fill everything before the server starts, which fences other writers.
        filled = [(load, fill(storage, load)) for load in loads if load.value_bytes in options.sizes]
        with server(arguments=["--redis", storage.url]) as broker:
            rows = [line for load, topic in filled for line in bench(storage, broker, load, topic, rounds)]
            print(
                table(["Spark", "value", "records/s", "MB/s", "CPU s", "asked for", "of that"], rows),
                end="\n\n",
                flush=True,
            )
            shown = visible(broker, *((5, QUICK_WARMING) if options.quick else (150, WARMING)))
            print(table(["one record per 100 ms", "p50 ms", "p95 ms", "p50 asked for"], [shown]), end="\n\n")
            memory = spark_memory_mb(os.getpid())
            print(table(["at the end", "MB"], [[name, used] for name, used in memory.items()]))
