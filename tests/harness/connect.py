"""Kafka Connect in distributed mode, which copies a file into a topic exactly once, and the topic into a file."""

import itertools
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.harness.apache_kafka import java_command, program_jars
from tests.harness.ports import free_ports

TOPIC = "lines"
GROUP = "connect"
"""Of the workers."""
_SETTINGS = """bootstrap.servers={kafka}
listeners=http://127.0.0.1:{port}
group.id={group}
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
_LOGS = Path(__file__).parents[1] / "clients" / "programs" / "log4j2.properties"
_PATIENCE_S = 240
_AT_ONCE = 500


class Worker:
    """A worker, until it is killed."""

    def __init__(self, kafka: str, folder: Path) -> None:
        """It begins at once; its log is in the folder."""
        (port,) = free_ports(1)
        self.name = f"127.0.0.1:{port}"
        self.log = folder / f"worker-{port}.log"
        settings = folder / f"worker-{port}.properties"
        settings.write_text(_SETTINGS.format(kafka=kafka, port=port, group=GROUP))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        with self.log.open("wb") as sink:
            command = java_command(f"-Dlog4j2.configurationFile={_LOGS}", main, str(settings), classes=program_jars())
            self.process = subprocess.Popen(command, stdout=sink, stderr=sink)

    def kill(self) -> None:
        """SIGKILL."""
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
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := happened()):
            assert self.process.poll() is None, self.log.read_text()[-8_000:]
            assert time.monotonic() < deadline, f"waited for {what}: {self.log.read_text()[-8_000:]}"
            time.sleep(0.2)
        return found


class Files:
    """The file that is copied, and its copy."""

    def __init__(self, folder: Path) -> None:
        """The first is empty, and the second does not exist yet."""
        self.source, self.target = folder / "source.txt", folder / "target.txt"
        self._numbers = itertools.count()

    def add(self, lines: int) -> None:
        """Add numbered lines to the first."""
        with self.source.open("a") as file:
            file.writelines(f"line {next(self._numbers)}\n" for _ in range(lines))

    def copy_with(self, worker: Worker) -> None:
        """Have the connectors `reader` and `writer` made."""
        reader = {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(self.source), "topic": TOPIC}
        reader |= {"exactly.once.support": "required", "transaction.boundary": "poll", "batch.size": "20"}
        writer = {"connector.class": "FileStreamSink", "tasks.max": "1", "file": str(self.target), "topics": TOPIC}
        writer |= {"consumer.override.isolation.level": "read_committed"}
        for name, settings in (("reader", reader), ("writer", writer)):
            worker.until(partial(worker.ask, f"/connectors/{name}/config", settings), "a connector")

    def copied(self, lines: int) -> bool:
        """Whether the second has as many different lines."""
        return self.target.exists() and len(set(self.target.read_text().splitlines())) >= lines

    def check(self) -> None:
        """A sink may repeat what it wrote before it committed its offsets."""
        assert set(self.target.read_text().splitlines()) <= set(self.source.read_text().splitlines())


class Committed:
    """The committed values of the topic so far."""

    def __init__(self, kafka: str) -> None:
        """Read from its begin."""
        self.values: list[str] = []
        given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": "read_committed"}
        self.consumer = Consumer({**given, "enable.auto.commit": False})
        self.consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def reached(self, count: int) -> bool:
        """Read on; whether there are as many."""
        for _ in range(_AT_ONCE):
            # librdkafka 2.16 drops what `consume` has collected when it validates its position at a new leader.
            message = self.consumer.poll(0.1)
            if message is None:
                break
            if message.error() is None:
                self.values.append((message.value() or b"").decode())
        return len(self.values) >= count

    def check(self) -> None:
        """Each line is there once, in order."""
        assert self.values == [f"line {number}" for number in range(len(self.values))]


def owner(worker: Worker) -> str:
    """The name of the worker that runs the task of `reader`, as one of them answers; empty while none does."""
    status = worker.ask("/connectors/reader/status")
    tasks = status["tasks"] if status else []
    return str(tasks[0]["worker_id"]) if tasks and tasks[0]["state"] == "RUNNING" else ""
