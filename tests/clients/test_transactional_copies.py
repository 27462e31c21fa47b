"""Programs of other languages that copy a topic exactly once, with groups and aborts: franz-go, sarama and KafkaJS."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.harness import fetching
from tests.harness.wire import Wire

from headrace.testing import Server, server

pytestmark = pytest.mark.timeout(900)
PROGRAMS = Path(__file__).parent / "transactions"
PARTITIONS = range(2)
TRANSACTIONS, EACH = 30, 10
WANTED = sorted(f"{number}-{each}" for number in range(TRANSACTIONS) if number % 3 for each in range(EACH))
RUN_S = 240


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=len(PARTITIONS)) as started:
        with Wire(started.kafka) as wire:
            for topic in ("source", "target"):
                wire.create(topic, partitions=len(PARTITIONS))
        fill(started.kafka)
        yield started


def fill(kafka: str) -> None:
    """Write to `source` in transactions over both partitions; every third one is aborted."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": "filler", "linger.ms": 0})
    producer.init_transactions(30)
    for number in range(TRANSACTIONS):
        producer.begin_transaction()
        for each in range(EACH):
            producer.produce("source", f"{number}-{each}", key=str(each), partition=each % len(PARTITIONS))
        assert producer.flush(30) == 0
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def values(kafka: str, topic: str, isolation: str = "read_committed") -> list[str]:
    """The values in both partitions, sorted."""
    given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": isolation, "enable.auto.commit": False}
    consumer = Consumer({**given, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in PARTITIONS])
    found: list[str] = []
    ended: set[int | None] = set()
    try:
        while len(ended) < len(PARTITIONS):
            message = consumer.poll(30)
            assert message is not None, "no end of the partition"
            if (error := message.error()) is None:
                found.append((message.value() or b"").decode())
            else:
                assert error.name() == "_PARTITION_EOF"
                ended.add(message.partition())
        return sorted(found)
    finally:
        consumer.close()


def lag(kafka: str, group: str) -> int:
    """How many records the group has not read, as of its committed offsets."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group, "isolation.level": "read_committed"})
    try:
        committed = consumer.committed([TopicPartition("source", index) for index in PARTITIONS], timeout=30)
        consumer.assign([TopicPartition("source", each.partition, each.offset) for each in committed])
        return len(consumer.consume(1_000, timeout=3))
    finally:
        consumer.close()


def assert_copied(running: Server, printed: str, group: str) -> None:
    assert values(running.kafka, "source") == WANTED
    assert values(running.kafka, "target") == WANTED
    assert len(values(running.kafka, "target", "read_uncommitted")) > len(WANTED), "transactions were aborted"
    assert lag(running.kafka, group) == 0
    copied, transactions = map(int, printed.split())
    assert (copied, transactions >= 4) == (len(WANTED), True)


@pytest.mark.go
@pytest.mark.parametrize("library", ["franz", "sarama"])
def test_go(running: Server, go_program: Path, library: str) -> None:
    command = [str(go_program), library, running.kafka, "source", "target", library, str(len(WANTED))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_copied(running, done.stdout.splitlines()[-1], library)


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("go") / "program"
    shutil.copytree(PROGRAMS / "go", folder)
    fetching.run([*fetching.GO_BUILD, "-o", "copy", "."], folder, each_s=300)
    return folder / "copy"


@pytest.mark.npm
def test_kafkajs(running: Server, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(PROGRAMS / "node", folder)
    fetching.run(
        ("npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
        folder,
        each_s=300,
    )
    command = ["node", "copy.js", running.kafka, "source", "target", "kafkajs", str(len(WANTED))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_copied(running, done.stdout.splitlines()[-1], "kafkajs")
