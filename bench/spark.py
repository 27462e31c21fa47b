"""What Spark reads and archives per second.

A log of two partitions lies in a Valkey on the same machine, in batches of about 64 KiB, as a producer under load
sends them; Spark runs as local[2] on the same cores. Best of some rounds. The CPU seconds are those of Python and the
JVM together, which say more than the clock where other work shares the machine. Each figure stands beside what the
design asks for, and beside reading the same log without Spark.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import NamedTuple

from tests.harness.storage import BareStorage, bare_storage

from bench.machine import describe
from bench.processes import tree_cpu_s
from bench.table import Cell, ratio, table
from headrace.records.build import build
from headrace.spark import session
from headrace.spark.archive import ArchiveSettings
from headrace.spark.archive import run as run_archive
from headrace.spark.log import LogReader
from headrace.spark.logs import Subscription
from headrace.spark.plan import Range
from headrace.topics.model import Topic

PARTITIONS = 2
BATCH_BYTES = 64 << 10
NOW = 1_700_000_000_000


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


def bench(storage: BareStorage, load: Load, rounds: int) -> Iterator[list[Cell]]:
    topic = fill(storage, load)
    spark = session.create("headrace bench", master="local[2]", memory="2g")
    with LogReader(storage.url) as log:
        extents = log.extents(log.topics(Subscription(names=(load.topic,))))
        records = sum(extent.end for extent in extents.values())

        def read_plainly() -> None:
            for partition, extent in extents.items():
                for _ in log.records(topic.streams[partition.partition], Range(partition, 0, extent.end)):
                    pass

        yield row("no Spark, one process", load, records, best(read_plainly, rounds), None)
    frame = spark.read.format("headrace").option("redis", storage.url).option("subscribe", load.topic).load()
    reading = best(lambda: frame.write.format("noop").mode("overwrite").save(), rounds)
    yield row("batch read to noop", load, records, reading, load.read_target)

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records", type=int, help="records of 100 B, and a fifth of 1 KiB (2 000 000; quick: 200 000)"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 1024], choices=(100, 1024), help="bytes of a value"
    )
    parser.add_argument("--rounds", type=int, help="rounds of which the best counts (5; quick: 2)")


def run(options: argparse.Namespace) -> None:
    count = options.records or (200_000 if options.quick else 2_000_000)
    rounds = options.rounds or (2 if options.quick else 5)
    loads = [
        Load("100 B", "bench-100", 100, count, 2_500_000, 1_000_000),
        Load("1 KiB", "bench-1024", 1024, count // 5, 600_000, 200_000),
    ]
    print(describe(spark=version("pyspark"), master="local[2]", best_of=f"{rounds} rounds"), end="\n\n", flush=True)
    with bare_storage() as storage:
        rows = [line for load in loads if load.value_bytes in options.sizes for line in bench(storage, load, rounds)]
    print(table(["Spark", "value", "records/s", "MB/s", "CPU s", "asked for", "of that"], rows))
