"""Kafka Connect copies a file into a topic exactly once, and the topic into a file; one of its workers is killed."""

import itertools
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.harness.apache_kafka import java_command, program_jars
from tests.harness.ports import free_ports
from tests.harness.wire import Wire

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
SETTINGS = """bootstrap.servers={kafka}
listeners=http://127.0.0.1:{port}
group.id=connect
exactly.once.source.support=enabled
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
plugin.discovery=service_load
config.storage.topic=connect-configs
config.storage.replication.factor=1
offset.storage.topic=connect-offsets
offset.storage.partitions=2
offset.storage.replication.factor=1
status.storage.topic=connect-status
status.storage.partitions=2
status.storage.replication.factor=1
offset.flush.interval.ms=500
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
consumer.session.timeout.ms=6000
consumer.heartbeat.interval.ms=1000
"""
LOGS = Path(__file__).parent / "programs" / "log4j2.properties"
LINES = 1_000
PATIENCE_S = 240


class Worker:
    """A worker, until it is killed."""

    def __init__(self, kafka: str, folder: Path) -> None:
        (port,) = free_ports(1)
        self.name = f"127.0.0.1:{port}"
        self.log = folder / f"worker-{port}.log"
        settings = folder / f"worker-{port}.properties"
        settings.write_text(SETTINGS.format(kafka=kafka, port=port))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self.log.open("wb") as sink:
            command = java_command(f"-Dlog4j2.configurationFile={LOGS}", main, str(settings), classes=program_jars())
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        """GET, or PUT with a body. None while the worker cannot answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.name}{path}", data, {"Content-Type": "application/json"})
        request.method = "GET" if body is None else "PUT"
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except (OSError, urllib.error.HTTPError):
            return None

    def until(self, happened: Callable[[], Any], what: str) -> Any:
        """Ask until the answer is true, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := happened()):
            assert self.process.poll() is None, self.log.read_text()[-8_000:]
            assert time.monotonic() < deadline, f"waited for {what}: {self.log.read_text()[-8_000:]}"
            time.sleep(0.2)
        return found


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        with Wire(started.kafka) as wire:
            wire.create("lines")
        yield started


class Committed:
    """The committed values of the topic so far."""

    def __init__(self, kafka: str) -> None:
        self.values: list[str] = []
        given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": "read_committed"}
        self.consumer = Consumer({**given, "enable.auto.commit": False})
        self.consumer.assign([TopicPartition("lines", 0, 0)])

    def reached(self, count: int) -> bool:
        for message in self.consumer.consume(500, timeout=0.2):
            if message.error() is None:
                self.values.append((message.value() or b"").decode())
        return len(self.values) >= count


def test_lines_are_copied_once_although_a_worker_is_killed(running: Server, tmp_path: Path) -> None:
    source, target = tmp_path / "source.txt", tmp_path / "target.txt"
    numbers = itertools.count()

    def add(lines: int) -> None:
        with source.open("a") as file:
            file.writelines(f"line {next(numbers)}\n" for _ in range(lines))

    def more() -> bool:
        add(20)
        return committed.reached(LINES)

    reader = {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(source), "topic": "lines"}
    reader |= {"exactly.once.support": "required", "transaction.boundary": "poll", "batch.size": "20"}
    writer = {"connector.class": "FileStreamSink", "tasks.max": "1", "file": str(target), "topics": "lines"}
    writer |= {"consumer.override.isolation.level": "read_committed"}
    committed = Committed(running.kafka)
    add(400)
    with ExitStack() as stack:
        workers = [Worker(running.kafka, tmp_path)]
        stack.callback(workers[0].kill)
        for name, settings in (("reader", reader), ("writer", writer)):
            workers[0].until(partial(workers[0].ask, f"/connectors/{name}/config", settings), "a connector")
        workers[0].until(lambda: committed.reached(1), "the first lines")
        workers.append(Worker(running.kafka, tmp_path))
        stack.callback(workers[1].kill)

        def owner() -> str:
            status = workers[1].ask("/connectors/reader/status")
            tasks = status["tasks"] if status else []
            return str(tasks[0]["worker_id"]) if tasks and tasks[0]["state"] == "RUNNING" else ""

        add(300)
        workers[1].until(owner, "the second worker")
        workers[1].until(lambda: committed.reached(401), "more lines")
        killed = next(each for each in workers if each.name == owner())
        killed.kill()
        left = next(each for each in workers if each is not killed)
        add(300)
        # The connector keeps its last lines until more come, if there are more than in a batch.
        left.until(more, "all lines")
        left.until(lambda: len(set(target.read_text().splitlines())) >= LINES, "the lines in the other file")
    committed.consumer.close()
    assert committed.values == [f"line {number}" for number in range(len(committed.values))]
    # A sink may repeat what it wrote before it committed its offsets.
    assert set(target.read_text().splitlines()) <= set(source.read_text().splitlines())
