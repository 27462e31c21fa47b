"""A Kafka Streams application that counts words exactly once, what it is given, and what it has committed.

The application is tests/clients/programs/WordCount.java: it reads the topic `lines`, and writes to the topic `counts`.
"""

import random
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.harness import fetching
from tests.harness.apache_kafka import java_command, program_jars

TOPICS = ("lines", "counts")
APPLICATION = "words"
"""Its `application.id`: its consumer group, and the begin of its transactional IDs and internal topics."""
_SOURCE = Path(__file__).parents[1] / "clients" / "programs" / "WordCount.java"
_WORDS_PER_LINE = 5
_VOCABULARY = 20
_PATIENCE_S = 150


def compiled(folder: Path) -> str:
    """Compile the application into a folder. Returns its class path."""
    fetching.run(["javac", "-d", str(folder), "-cp", program_jars(), str(_SOURCE)], each_s=300)
    return f"{folder}:{program_jars()}"


@contextmanager
def application(kafka: str, state: Path, classes: str, log: Path) -> Iterator[None]:
    """Run it with its state in a folder. It is killed at the end."""
    command = java_command("WordCount", kafka, str(state), classes=classes)
    with log.open("ab") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
        try:
            yield
        finally:
            process.kill()


class Lines:
    """Lines of words, each written once, and how often each word is in them."""

    def __init__(self, kafka: str, partitions: int) -> None:
        """Words and partitions are the same in each run."""
        self.written: Counter[str] = Counter()
        self._partitions = partitions
        self._numbers = random.Random(1)
        # A line that is sent again is not written again.
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})

    def write(self, lines: int) -> None:
        """Write lines, and wait until all are acknowledged. Raises AssertionError if one is not."""
        refused: list[object] = []
        for _ in range(lines):
            words = [f"word-{self._numbers.randrange(_VOCABULARY)}" for _ in range(_WORDS_PER_LINE)]
            self._producer.produce(
                "lines",
                " ".join(words),
                partition=self._numbers.randrange(self._partitions),
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
            self.written.update(words)
        assert self._producer.flush(_PATIENCE_S) == 0
        assert refused == []


class Counts:
    """What was committed to `counts`: for each word, its counts in order."""

    def __init__(self, kafka: str, partitions: int) -> None:
        """Read from the begin of the topic."""
        self.found: dict[str, list[int]] = defaultdict(list)
        given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": "read_committed"}
        self.consumer = Consumer({**given, "enable.auto.commit": False})
        self.consumer.assign([TopicPartition("counts", index, 0) for index in range(partitions)])

    @property
    def total(self) -> int:
        """How many were read."""
        return sum(map(len, self.found.values()))

    def read(self, wanted: int, log: Path) -> None:
        """Wait until there are `wanted` counts in all; fails with the end of the application's log."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.total < wanted:
            assert time.monotonic() < deadline, f"{self.total} of {wanted} counts: {log.read_text()[-8_000:]}"
            # librdkafka 2.16 drops what `consume` has collected when it validates its position at a new leader.
            message = self.consumer.poll(0.5)
            if message is not None and message.error() is None:
                self.found[(message.key() or b"").decode()].append(int(message.value() or b""))

    def check(self, written: Counter[str]) -> None:
        """Each word was counted once, and its counts are in order."""
        assert self.found == {word: list(range(1, count + 1)) for word, count in written.items()}
