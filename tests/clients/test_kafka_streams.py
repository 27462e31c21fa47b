"""Kafka Streams counts words exactly once, while the application and the server are killed."""

import random
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.harness import fetching
from tests.harness.apache_kafka import java_command, program_jars
from tests.harness.wire import Wire

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]
SOURCE = Path(__file__).parent / "programs" / "WordCount.java"
PARTITIONS = range(2)
LINES, WORDS = 100, 5
PATIENCE_S = 150


class Counts:
    """What was committed to `counts`: for each word, its counts in order."""

    def __init__(self, kafka: str) -> None:
        self.found: dict[str, list[int]] = defaultdict(list)
        given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": "read_committed"}
        self.consumer = Consumer({**given, "enable.auto.commit": False})
        self.consumer.assign([TopicPartition("counts", index, 0) for index in PARTITIONS])

    def read(self, wanted: int, log: Path) -> None:
        """Wait until there are `wanted` counts in all."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, self.found.values())) < wanted:
            assert time.monotonic() < deadline, log.read_text()[-8_000:]
            # librdkafka 2.16 drops what `consume` has collected when it validates its position at a new leader.
            message = self.consumer.poll(0.5)
            if message is not None and message.error() is None:
                self.found[(message.key() or b"").decode()].append(int(message.value() or b""))


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=len(PARTITIONS)) as started:
        with Wire(started.kafka) as wire:
            for topic in ("lines", "counts"):
                wire.create(topic, partitions=len(PARTITIONS))
        yield started


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classes")
    fetching.run(["javac", "-d", str(folder), "-cp", program_jars(), str(SOURCE)], each_s=300)
    return folder


def write(kafka: str, numbers: random.Random) -> Counter[str]:
    """Write lines of words; how often each word is in them."""
    written: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(LINES):
        words = [f"word-{numbers.randrange(20)}" for _ in range(WORDS)]
        producer.produce("lines", " ".join(words), partition=numbers.choice(PARTITIONS))
        written.update(words)
    assert producer.flush(30) == 0
    return written


def test_each_word_is_counted_once(running: Server, classes: Path, tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "application.log"
    log.touch()

    @contextmanager
    def application() -> Iterator[None]:
        """It is killed at the end."""
        words = ("WordCount", running.kafka, str(state))
        command = java_command(*words, classes=f"{classes}:{program_jars()}")
        with log.open("ab") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
            try:
                yield
            finally:
                process.kill()

    written, counts, numbers = Counter[str](), Counts(running.kafka), random.Random(1)
    with application():
        written += write(running.kafka, numbers)
        counts.read(1, log)
    # Its successor has its state, and fences it.
    with application():
        written += write(running.kafka, numbers)
        counts.read(LINES * WORDS + 1, log)
    # This one restores its state from the changelog. Its predecessor's transaction ends by its timeout.
    shutil.rmtree(state)
    with application():
        written += write(running.kafka, numbers)
        counts.read(2 * LINES * WORDS + 1, log)
        running.kill()
        running.start()
        written += write(running.kafka, numbers)
        counts.read(written.total(), log)
    counts.consumer.close()
    assert counts.found == {word: list(range(1, count + 1)) for word, count in written.items()}
