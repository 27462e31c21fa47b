"""The OCI API: throughput and latency of PutMessages and GetMessages, with many messages per request and with one.

The load comes from bare HTTP over a few persistent connections, in a separate process; the cost of Oracle's SDK is
listed next to it. Responses follow storage, as always.
"""

import argparse
import base64
import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from uuid import UUID

import msgspec
from tests.harness.wire import Wire

from bench.load import Delays, LoadFailed, Worker
from bench.machine import describe
from bench.rest import Get, Paced, Put, Sdk
from bench.table import Cell, table
from bench.targets import SERVER, VALKEY, Run, Target, load
from headrace.testing import Server, server

TOPIC = "bench"
PARTITIONS = 4


class Place(msgspec.Struct, frozen=True):
    """Where a load goes."""

    target: Target
    host: str
    port: int
    stream: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=4, help="kept connections (4)")
    parser.add_argument("--batch", type=int, default=100, help="messages of a large request (100)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value (1024)")
    parser.add_argument("--megabytes", type=float, help="values of a throughput row (400; quick: 20)")
    parser.add_argument("--requests", type=int, help="requests of one message (40 000; quick: 2 000)")
    parser.add_argument("--rate", type=int, default=500, help="requests/s of the latency row (500)")
    parser.add_argument("--seconds", type=float, help="of the latency row (6; quick: 1)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (3; quick: 1)")
    parser.add_argument("--no-sdk", action="store_true", help="leave Oracle's SDK out")


def run(options: argparse.Namespace) -> int:
    quick = options.quick
    bench = Bench(options, options.rounds or (1 if quick else 3))
    print(
        describe(
            client="bare HTTP",
            connections=options.connections,
            partitions=PARTITIONS,
            value=f"{options.size} B",
            median_of=f"{bench.rounds} rounds",
        ),
        flush=True,
    )
    print("\n" + bench.throughput(), flush=True)
    print("\n" + bench.latency(), flush=True)
    return int(bench.failed)


class Bench:
    """The parts of this bench, each a table."""

    def __init__(self, options: argparse.Namespace, rounds: int) -> None:
        quick = options.quick
        self.rounds = rounds
        self.failed = False
        self._options = options
        per_request = options.batch * options.size
        self._large = max(options.connections, int(1e6 * (options.megabytes or (20 if quick else 400))) // per_request)
        self._single = options.requests or (2_000 if quick else 40_000)
        self._seconds = options.seconds or (1 if quick else 6)

    def throughput(self) -> str:
        """Requests of many messages and of one, and the same through the SDK."""
        batch = self._options.batch
        few = max(2, self._large // 10)
        found: dict[str, list[Run]] = {}
        for _ in range(self.rounds):
            with self._counted("throughput"), _place() as place:
                for name, task in (
                    ("PutMessages", self._put(place, self._large, batch)),
                    ("GetMessages", self._get(place, batch, group=False)),
                    ("GetMessages, group,", self._get(place, batch, group=True)),
                ):
                    found.setdefault(f"{name} of {batch}", []).append(load(place.target, [task]))
                single = load(place.target, [self._put(place, self._single, 1)])
                found.setdefault("PutMessages of 1", []).append(single)
                if not self._options.no_sdk:
                    for name, asked in (
                        (f"PutMessages of {batch}", self._sdk(place, few, batch, put=True)),
                        (f"GetMessages of {batch}", self._sdk(place, few // 2, batch, put=False)),
                        ("PutMessages of 1", self._sdk(place, few * 5, 1, put=True)),
                    ):
                        found.setdefault(f"{name}, SDK", []).append(load(place.target, [asked]))
        head = [
            "", "MB/s", "requests/s", "messages/s", "server CPU us/request", "Valkey CPU us/request",
            "MB per server CPU s", "server peak MB", "Valkey peak MB",
        ]  # fmt: skip
        return table(head, [self._cells(name, runs) for name, runs in found.items()])

    def _cells(self, name: str, runs: list[Run]) -> list[Cell]:
        per_request = 1 if " of 1" in name and f" of {self._options.batch}" not in name else self._options.batch
        megabytes = self._options.size / 1e6

        def median(of: Callable[[Run], float]) -> float:
            return statistics.median(of(each) for each in runs)

        return [
            name,
            median(lambda each: each.rate * megabytes),
            median(lambda each: each.rate / per_request),
            median(lambda each: each.rate),
            median(lambda each: each.cpu_s[SERVER] / each.records * per_request * 1e6),
            median(lambda each: each.cpu_s[VALKEY] / each.records * per_request * 1e6),
            median(lambda each: each.records * megabytes / (each.cpu_s[SERVER] or 0.01)),
            median(lambda each: each.peak_mb[SERVER]),
            median(lambda each: each.peak_mb[VALKEY]),
        ]

    def _put(self, place: Place, requests: int, batch: int) -> Put:
        return Put(
            host=place.host,
            port=place.port,
            stream=place.stream,
            connections=self._options.connections,
            requests=requests,
            batch=batch,
            size=self._options.size,
        )

    def _get(self, place: Place, batch: int, *, group: bool) -> Get:
        return Get(
            host=place.host,
            port=place.port,
            stream=place.stream,
            connections=min(self._options.connections, PARTITIONS),
            requests=self._large,
            batch=batch,
            group=group,
        )

    def _sdk(self, place: Place, requests: int, batch: int, *, put: bool) -> Sdk:
        return Sdk(
            host=place.host,
            port=place.port,
            stream=place.stream,
            put=put,
            requests=max(1, requests),
            batch=batch,
            size=self._options.size,
        )

    def latency(self) -> str:
        """From when a request was due to its answer, at a fixed rate."""
        options = self._options
        found: list[Delays] = []
        for _ in range(self.rounds):
            with self._counted("latency"), _place() as place:
                task = Paced(
                    host=place.host,
                    port=place.port,
                    stream=place.stream,
                    connections=options.connections,
                    requests=max(10, int(options.rate * self._seconds)),
                    size=options.size,
                    rate=options.rate,
                )
                with Worker(task) as worker:
                    worker.start()
                    found.append(worker.result(Delays))
        cells = [
            statistics.median(getattr(each, name) for each in found) if found else None
            for name in ("p50", "p99", "longest")
        ]
        head = ["PutMessages of 1", "p50 ms", "p99 ms", "max ms"]
        return table(head, [[f"{options.rate:,} requests/s", *cells]])

    @contextlib.contextmanager
    def _counted(self, what: str) -> Iterator[None]:
        """Report a failed load, and keep the other rows."""
        try:
            yield
        except LoadFailed as error:
            self.failed = True
            print(f"failed: {what}: {error}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _place() -> Iterator[Place]:
    """A server on a temporary data directory, with one stream."""
    with server(oci_auth="off") as started:
        with Wire(started.kafka) as client:
            client.create(TOPIC, PARTITIONS)
        host, _, port = started.http.removeprefix("http://").partition(":")
        processes = {SERVER: started.pid, VALKEY: started.storage_pid}
        yield Place(Target(started.kafka, lambda: processes), host, int(port), _stream(started))


def _stream(started: Server) -> str:
    """The stream's OCID, which holds the topic's id."""
    from confluent_kafka import TopicCollection  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": started.kafka})
    found = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result()
    text = str(found.topic_id).replace("-", "+").replace("_", "/")
    return f"ocid1.stream.oc1.local.{UUID(bytes=base64.b64decode(text + '==')).hex}"
