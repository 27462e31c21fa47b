"""Reading, whatever is killed: every record comes once, counted in a Delta table by a reader that is not Spark.

The query runs all the while and is started again where it ended. Its sink writes each batch once, so what is doubled or
missing was read so. `make test LANE=crash-spark` runs this file.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from deltalake import DeltaTable

from headrace.testing import Server, server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 3_000
"""In each partition, before the kill and after it."""
PATIENCE_S = 240


class Reading:
    """A query over every topic of a server, in a process that may be killed."""

    def __init__(self, started: Server, folder: Path, *, redis: bool) -> None:
        self.server = started
        self.folder = folder
        self.expected: Counter[tuple[str, int, int]] = Counter()
        self._redis = redis
        self._process: subprocess.Popen[bytes] | None = None
        self._log = (folder / "query.log").open("ab")

    def fill(self, topic: str, partitions: int) -> None:
        """Append records in that many partitions; create the topic and partitions if needed."""
        admin = AdminClient({"bootstrap.servers": self.server.kafka})
        present = {partition for name, partition, _ in self.expected if name == topic}
        if not present:
            admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
        elif len(present) < partitions:
            admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)
        producer = Producer({"bootstrap.servers": self.server.kafka, "linger.ms": 5, "enable.idempotence": True})
        for partition in range(partitions):
            first = sum(1 for name, number, _ in self.expected if (name, number) == (topic, partition))
            for offset in range(first, first + RECORDS):
                producer.produce(topic, b"%d" % offset, partition=partition)
                self.expected[topic, partition, offset] += 1
        assert producer.flush(60) == 0

    def start(self) -> None:
        """Start the query, or go on with it."""
        options = {"subscribePattern": "read-.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "700"}
        options |= {"redis": self.server.storage} if self._redis else {"kafka.bootstrap.servers": self.server.kafka}
        arguments = [f"{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "tests.spark.reading", str(self.folder), *arguments]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    def until(self, rows: int) -> None:
        """Wait until the table has so many rows; a query that ends is started again."""
        deadline = time.monotonic() + PATIENCE_S
        while self.rows() < rows:
            assert self._process is not None
            if self._process.poll() is not None:
                self.start()
            if time.monotonic() > deadline:
                pytest.fail(f"{self.rows()} of {rows} rows; {(self.folder / 'query.log').read_text()[-3_000:]}")
            time.sleep(0.1)

    def rows(self) -> int:
        """How many rows the table has."""
        table = self.folder / "table"
        if not DeltaTable.is_deltatable(str(table)):
            return 0
        return sum(DeltaTable(str(table)).get_add_actions().column("num_records").to_pylist())

    def found(self) -> Counter[tuple[str, int, int]]:
        """What was read, and how often."""
        rows = DeltaTable(str(self.folder / "table")).to_pyarrow_table()
        return Counter(zip(*(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True))

    def kill(self, *names: str) -> None:
        """SIGKILL what belongs to the query: `driver`, `jvm`, `workers`; of each whatever there is of it."""
        assert self._process is not None
        family = descendants(self._process.pid)
        jvms = {pid for pid, command in family.items() if Path(command[0]).name == "java"}
        below = {pid for jvm in jvms for pid in descendants(jvm)}
        found = {"driver": {self._process.pid}, "jvm": jvms, "workers": below}
        for name in names:
            assert found[name], f"no {name} among {family}"
            for pid in found[name]:
                kill(pid)

    def end(self) -> None:
        """End the query and what belongs to it."""
        if self._process is not None:
            family = descendants(self._process.pid)
            for pid in (self._process.pid, *family):
                kill(pid)
            self._process.wait()
        self._log.close()


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def descendants(pid: int) -> dict[int, list[str]]:
    """The processes below one, with their command lines."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1]), command
    found: dict[int, list[str]] = {}
    todo = [pid]
    while todo:
        parent = todo.pop()
        for child, (above, command) in parents.items():
            if above == parent:
                found[child] = command
                todo.append(child)
    return found


def _restart_server(reading: Reading) -> None:
    reading.server.kill()
    reading.server.start()


def _restart_valkey(reading: Reading) -> None:
    reading.server.kill_storage()
    reading.server.wait()
    reading.server.start()


WAYS: dict[str, Callable[[Reading], None]] = {
    "driver": lambda reading: reading.kill("driver"),
    "jvm": lambda reading: reading.kill("jvm"),
    "workers": lambda reading: reading.kill("workers"),
    "driver and jvm": lambda reading: reading.kill("driver", "jvm"),
    "server": _restart_server,
    "valkey": _restart_valkey,
}


@pytest.fixture
def started() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("redis", [True, False], ids=["redis", "kafka"])
@pytest.mark.parametrize("way", WAYS)
def test_every_record_once(way: str, redis: bool, started: Server, tmp_path: Path) -> None:
    reading = Reading(started, tmp_path, redis=redis)
    try:
        reading.fill("read-first", 2)
        reading.start()
        reading.until(1_400)
        WAYS[way](reading)
        reading.fill("read-later", 1)  # while the query runs, or is down
        reading.until(4_000)
        WAYS[way](reading)
        reading.fill("read-first", 3)
        reading.until(reading.expected.total())
        assert reading.found() == reading.expected
    finally:
        reading.end()


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_killed_worker_and_a_topic_that_comes_later(spark: "SparkSession", started: Server, tmp_path: Path) -> None:
    """A session whose tasks are tried once, so the query ends with its workers and goes on from its checkpoint."""
    reading = Reading(started, tmp_path, redis=True)
    reading.fill("read-first", 2)
    options = {"subscribePattern": "read-.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "700"}
    frame = spark.readStream.format("headrace").option("redis", started.storage).options(**options).load()
    rows = frame.select("topic", "partition", "offset").writeStream.format("headrace.delta")
    writer = rows.option("checkpointLocation", str(tmp_path / "checkpoint"))
    failures = 0

    def until(wanted: int) -> None:
        nonlocal failures
        query = writer.start(str(tmp_path / "table"))
        while reading.rows() < wanted:
            if not query.isActive:
                failures += 1
                assert failures < 5, query.exception()
                query = writer.start(str(tmp_path / "table"))
            time.sleep(0.05)
        query.stop()

    until(1_400)
    jvm = next(pid for pid, command in descendants(os.getpid()).items() if Path(command[0]).name == "java")
    for pid in descendants(jvm):
        kill(pid)
    reading.fill("read-later", 1)
    until(reading.expected.total())
    reading.end()
    assert reading.found() == reading.expected
