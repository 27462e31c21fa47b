"""What Spark reads and archives per second: `python bench/spark.py [records of 100 B]`.

A log of two partitions lies in a Valkey on the same machine, in batches of about 64 KiB, as a producer under load
sends them; Spark runs as local[2] on the same cores. Best of some rounds. The CPU seconds are those of Python and the
JVM together, which say more than the clock where other work shares the machine. Each figure stands beside what the
design asks for, and beside reading the same log without Spark.
"""

import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.records import native
from headrace.records.build import build
from headrace.spark import session
from headrace.spark.archive import ArchiveSettings, run
from headrace.spark.log import LogReader
from headrace.spark.plan import Range
from headrace.testing.storage import BareStorage, bare_storage
from headrace.topics.model import Topic

ROUNDS = 5
PARTITIONS = 2
BATCH_BYTES = 64 << 10
NOW = 1_700_000_000_000


class Load(NamedTuple):
    name: str
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
    topic = storage.create_topic(load.name, PARTITIONS)
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
    """CPU seconds of this session's processes but Valkey: Python here, the JVM, Spark's workers."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, fields = (entry / "stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            words = fields.split()
            if int(words[3]) == os.getsid(0) and "valkey" not in name:
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def best(work: Callable[[], object]) -> Result:
    results = []
    for _ in range(ROUNDS):
        cpu, clock = cpu_of_session(), time.perf_counter()
        work()
        results.append(Result(time.perf_counter() - clock, cpu_of_session() - cpu))
    return min(results)


def report(what: str, load: Load, records: int, result: Result, target: int | None) -> None:
    rate = records / result.seconds
    goal = f"{target:>11,}  {rate / target:6.2f}" if target else f"{'-':>11}  {'-':>6}"
    megabytes = rate * load.value_bytes / 1e6
    print(f"{what:<22} {load.name:<6} {rate:>11,.0f} {megabytes:>7.0f} {result.cpu_s:>7.2f} {goal}", flush=True)


def bench(storage: BareStorage, load: Load) -> None:
    topic = fill(storage, load)
    spark = session.create("headrace bench", master="local[2]", memory="2g")
    with LogReader(storage.url) as log:
        extents = log.extents(log.topic(load.name))
        records = sum(extent.end for extent in extents.values())

        def read_plainly() -> None:
            for partition, extent in extents.items():
                for _ in log.records(load.name, topic.streams[partition], Range(partition, 0, extent.end)):
                    pass

        report("no Spark, one process", load, records, best(read_plainly), None)
    frame = spark.read.format("headrace").option("redis", storage.url).option("subscribe", load.name).load()
    report(
        "batch read to noop",
        load,
        records,
        best(lambda: frame.write.format("noop").mode("overwrite").save()),
        load.read_target,
    )

    def archive() -> None:
        with tempfile.TemporaryDirectory() as table:
            settings = ArchiveSettings(topic=load.name, table=f"{table}/t", redis=storage.url)
            assert run(settings, once=True, spark=spark).rows == records

    report("archive, whole run", load, records, best(archive), load.archive_target)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    loads = [
        Load("100B", 100, count, 2_000_000, 300_000),
        Load("1KiB", 1024, count // 5, 600_000, 100_000),
    ]
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {native.description}")
    print(f"{'':<22} {'value':<6} {'records/s':>11} {'MB/s':>7} {'CPU s':>7} {'asked for':>11}  {'ratio':>6}")
    with bare_storage() as storage:
        for load in loads:
            bench(storage, load)


if __name__ == "__main__":
    main()
