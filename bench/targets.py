"""What a load is sent to: a fresh Headrace, Apache Kafka, or the broker that does nothing.

Each is gone at the end of its block.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis
from tests.harness.apache_kafka import apache_kafka
from tests.harness.wire import Wire

from bench.load import Span, Worker, seconds
from bench.processes import cpu_s, peak_mb, reset_peak
from headrace.testing import Server, server

SERVER, VALKEY, NULL, KAFKA = "server", "valkey", "null", "Kafka"
_JVM = (
    *("-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
"""What Kafka's own script gives its broker."""


class Target(msgspec.Struct, frozen=True):
    """An address and its processes by name, looked up each time, since a restart changes them."""

    address: str
    processes: Callable[[], Mapping[str, int]]
    batches: Callable[[], int] = lambda: 0
    """Number of record batches in its logs; 0 if not counted."""


class Run(msgspec.Struct, frozen=True):
    """What a load did, and what it cost the processes of its target."""

    seconds: float
    records: int
    cpu_s: Mapping[str, float]
    peak_mb: Mapping[str, float]
    batches: int
    """In the logs afterwards."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds


class Phase(msgspec.Struct, frozen=True):
    """One change of a group, and what it cost the server with its storage."""

    seconds: float
    cpu_s: float
    heartbeats: int


class Meter:
    """What the processes of a target spend from now on."""

    def __init__(self, target: Target) -> None:
        self._pids = target.processes().values()
        self._before = sum(map(cpu_s, self._pids))
        self._began = time.monotonic()

    def phase(self, heartbeats: int) -> Phase:
        return Phase(time.monotonic() - self._began, sum(map(cpu_s, self._pids)) - self._before, heartbeats)


def load(target: Target, tasks: Sequence[Any]) -> Run:
    """Run tasks at once, each in a process of its own. Raises LoadFailed."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(task)) for task in tasks]
        processes = target.processes()
        for pid in processes.values():
            reset_peak(pid)
        before = {name: cpu_s(pid) for name, pid in processes.items()}
        for worker in workers:
            worker.start()
        spans: list[Span] = [worker.result(Span) for worker in workers]
        return Run(
            seconds=seconds(spans),
            records=sum(span.records for span in spans),
            cpu_s={name: cpu_s(pid) - before[name] for name, pid in processes.items()},
            peak_mb={name: peak_mb(pid) for name, pid in processes.items()},
            batches=target.batches(),
        )


@contextlib.contextmanager
def headrace(
    topic: str, partitions: int, fsync: str = "no", settings: Sequence[str] = ()
) -> Iterator[tuple[Target, Server]]:
    """A server on a temporary data directory, with one topic, and with further settings (`KEY=VALUE`)."""
    given = [word for each in settings for word in ("--set", each)]
    with server(arguments=["--fsync", fsync, *given]) as started:
        with Wire(started.kafka) as client:
            client.create(topic, partitions)
        yield (
            Target(
                started.kafka,
                lambda: {SERVER: started.pid, VALKEY: started.storage_pid},
                lambda: _entries(started.storage),
            ),
            started,
        )


def _entries(storage: str) -> int:
    """Entries in all Redis Streams: a record batch each."""
    with redis.Redis.from_url(storage) as link:
        return sum(int(link.xlen(key)) for key in link.scan_iter(_type="stream"))


@contextlib.contextmanager
def kafka(*settings: str) -> Iterator[tuple[Target, Path]]:
    """Apache Kafka with further settings (`KEY=VALUE`), and the directory of its logs. Needs Java and Maven."""
    with (
        tempfile.TemporaryDirectory(prefix="kafka-") as name,
        apache_kafka(Path(name), settings, _JVM) as started,
    ):
        yield Target(started.plain, lambda: {KAFKA: started.pid}), Path(name) / "log"


@contextlib.contextmanager
def null(*arguments: str) -> Iterator[Target]:
    """The broker that does nothing; `arguments` are those of `bench.null`."""
    command = [sys.executable, "-m", "bench.null", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().removeprefix("ready ").strip()
            yield Target(address, lambda: {NULL: process.pid})
        finally:
            process.terminate()
