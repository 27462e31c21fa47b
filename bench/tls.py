"""The Kafka listener with TLS and without, of one server; with `--kafka` also Apache Kafka's.

Iterations of both listeners alternate, so that other work of the machine affects both; the medians count. Apache Kafka
comes from Maven; its listener with TLS also requires a login by PLAIN, once per connection.
"""

import argparse
import contextlib
import datetime as dt
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.apache_kafka import PASSWORD, USER, apache_kafka

from bench.load import Consume, Produce
from bench.machine import client_library, describe
from bench.table import Cell, table
from bench.targets import SERVER, VALKEY, Run, Target, load
from headrace.security.tls.files import create
from headrace.testing import Server

PARTITIONS = 4
TOPIC = "bench"
RECORD_BYTES = 1024
_BATCH_BYTES = 1_000_000
_KAFKA = "Kafka"


class Listeners(msgspec.Struct, frozen=True):
    """A server, by its listener without TLS and the one with it."""

    name: str
    plain: Target
    secure: Target
    security: dict[str, str]
    """How clients reach the second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too: needs Java and Maven")
    parser.add_argument("--megabytes", type=float, help="payload of a round (200; quick: 20)")
    parser.add_argument("--rounds", type=int, help="rounds whose median counts (3; quick: 1)")


def run(options: argparse.Namespace) -> None:
    rounds = options.rounds or (1 if options.quick else 3)
    megabytes = options.megabytes or (20 if options.quick else 200)
    records = int(megabytes * 1e6 / RECORD_BYTES / PARTITIONS) * PARTITIONS
    print(
        describe(
            client=client_library(), acks="all", partitions=PARTITIONS, median_of=f"{rounds} rounds",
            megabytes_a_round=f"{megabytes:g}", record=f"{RECORD_BYTES} B, batches of 1 MB",
        ),
        flush=True,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(_headrace())]
        if options.kafka:
            targets.append(stack.enter_context(_apache_kafka()))
        rows = [row for target in targets for row in _measured(target, records, rounds)]
    head = ["server", "load", "MB/s", "with TLS", "ratio", "CPU s/GB", "with TLS", "more"]
    print("\n" + table(head, rows), flush=True)


@contextlib.contextmanager
def _headrace() -> Iterator[Listeners]:
    with tempfile.TemporaryDirectory() as name:
        made = create(Path(name) / "certificates", (), "bench", dt.datetime.now(dt.UTC))
        settings = ["listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", f"ssl.keystore.location={made.server}"]
        arguments = [word for each in settings for word in ("--set", each)]
        with Server(Path(name) / "data", [*arguments, "--fsync", "no"]) as started:
            pids = {SERVER: started.pid, VALKEY: started.storage_pid}
            security = {"security.protocol": "SSL", "ssl.ca.location": str(made.authority)}
            plain, secure = (Target(each, lambda: pids) for each in (started.kafka, started.listeners["SSL"]))
            yield Listeners("Headrace", plain, secure, security)


@contextlib.contextmanager
def _apache_kafka() -> Iterator[Listeners]:
    with tempfile.TemporaryDirectory() as name, apache_kafka(Path(name)) as started:
        security = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(started.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        plain, secure = (Target(each, lambda: {_KAFKA: started.pid}) for each in (started.plain, started.secure))
        yield Listeners("Apache Kafka", plain, secure, security)


def _measured(listeners: Listeners, records: int, rounds: int) -> Iterator[list[Cell]]:
    """A row for producing and one for consuming."""
    produced: dict[bool, list[Run]] = {False: [], True: []}
    consumed: dict[bool, list[Run]] = {False: [], True: []}
    for number in range(rounds):
        # The first one has the colder server: they take turns.
        for tls in (False, True) if number % 2 == 0 else (True, False):
            target, security = (listeners.secure, listeners.security) if tls else (listeners.plain, {})
            topic = f"{TOPIC}-{number}-{'tls' if tls else 'plain'}"
            _create(listeners.plain.address, topic)
            produced[tls].append(load(target, [_produce(target.address, topic, records, security)]))
            places = list(range(PARTITIONS))
            task = Consume(servers=target.address, topic=topic, partitions=places, security=security)
            consumed[tls].append(load(target, [task]))
    for name, runs in (("produce", produced), ("consume", consumed)):
        plain, secure = (
            statistics.median(each.rate * RECORD_BYTES / 1e6 for each in runs[tls]) for tls in (False, True)
        )
        cost, more = (statistics.median(_cpu_a_gb(each) for each in runs[tls]) for tls in (False, True))
        yield [listeners.name, name, plain, secure, secure / plain, cost, more, more - cost]


def _create(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def _produce(address: str, topic: str, records: int, security: dict[str, str]) -> Produce:
    settings = {"linger.ms": "5", "batch.size": str(_BATCH_BYTES), "batch.num.messages": "100000"}
    return Produce(
        servers=address, topic=topic, partitions=PARTITIONS, records=records, size=RECORD_BYTES,
        settings=settings | {"enable.idempotence": "true"}, security=security,
    )  # fmt: skip


def _cpu_a_gb(one: Run) -> float:
    return sum(one.cpu_s.values()) / (one.records * RECORD_BYTES / 1e9)
