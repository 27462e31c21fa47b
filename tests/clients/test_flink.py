"""Flink's KafkaSink writes each record once, while its JVM is killed at each step of a commit, and the server once."""

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.harness import fetching
from tests.harness.apache_kafka import flink_jars, java_command
from tests.harness.gate import gate
from tests.harness.ports import free_ports
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.testing import server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
LOGS = HERE / "programs" / "log4j2.properties"
STRATEGIES = ("INCREMENTING", "POOLING")
"""How a sink names its transactions. Each has a sink, and a topic, of its own."""
PARTITIONS = range(2)
EACH_S = 0.002
REFUSED = "Unable to commit transaction"
"""Flink logs this and goes on, although records may be missing. A repeated commit succeeds."""


class Feeder(threading.Thread):
    """Writes numbers from 0 until `finish`."""

    def __init__(self, kafka: str) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        self._stop_asked = threading.Event()
        self._written = 0

    def run(self) -> None:
        while not self._stop_asked.wait(EACH_S):
            self._producer.produce("numbers", str(self._written), partition=self._written % len(PARTITIONS))
            self._producer.poll(0)
            self._written += 1

    def finish(self) -> int:
        """Stop; how many numbers are in the topic."""
        self._stop_asked.set()
        self.join()
        assert self._producer.flush(60) == 0
        return self._written


class Copies:
    """What was committed to the sinks' topics."""

    def __init__(self, kafka: str) -> None:
        self.found = {strategy: Counter[int]() for strategy in STRATEGIES}
        given = {"bootstrap.servers": kafka, "group.id": "test", "isolation.level": "read_committed"}
        self.consumer = Consumer({**given, "enable.auto.commit": False})
        self.consumer.assign([TopicPartition(topic, index, 0) for topic in STRATEGIES for index in PARTITIONS])

    def read(self, wanted: int) -> None:
        """Wait until each has at least `wanted` records, as counted with repeated ones."""

        def enough() -> bool:
            # librdkafka 2.16 drops what `consume` has collected when it validates its position at a new leader.
            while (message := self.consumer.poll(0.1)) is not None:
                if message.error() is None:
                    self.found[message.topic() or ""][int(message.value() or b"")] += 1
            return min(found.total() for found in self.found.values()) >= wanted

        wait_for(enough, f"{wanted} copies, instead of {[found.total() for found in self.found.values()]}")


def with_open(kafka: str) -> set[str]:
    """The topics that have records of transactions that have not ended."""
    with Wire(kafka) as wire:
        return {
            topic
            for topic in STRATEGIES
            for index in PARTITIONS
            if wire.offset(topic, -1, partition=index, isolation=1).offset
            < wire.offset(topic, -1, partition=index).offset
        }


def newest(checkpoints: Path) -> list[str]:
    """The latest checkpoint that is complete; nothing if there is none yet."""
    found = {int(each.parent.name.removeprefix("chk-")): each.parent for each in checkpoints.glob("*/chk-*/_metadata")}
    return [str(found[max(found)])] if found else []


def progress(checkpoints: Path) -> None:
    """Wait until another checkpoint is complete."""
    began = newest(checkpoints)
    wait_for(lambda: newest(checkpoints) != began, "a checkpoint")


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, libraries = tmp_path_factory.mktemp("classes"), flink_jars()
    fetching.run(["javac", "-d", str(folder), "-cp", libraries, str(HERE / "flink" / "Copy.java")], each_s=300)
    return f"{folder}:{libraries}"


def test_a_sink_that_is_killed_writes_each_record_once(classes: str, tmp_path: Path) -> None:
    checkpoints, log = tmp_path / "checkpoints", tmp_path / "flink.log"
    address = f"127.0.0.1:{free_ports(1)[0]}"

    @contextmanager
    def flink() -> Iterator[None]:
        """A job that continues after the last checkpoint, and has completed another one. It is killed at the end."""
        before.withhold(None)
        words = ("Copy", address, str(checkpoints), *newest(checkpoints))
        command = java_command(f"-Dlog4j2.configurationFile={LOGS}", *words, classes=classes, heap_mib=384)
        with log.open("ab") as sink, subprocess.Popen(command, stdout=sink, stderr=sink) as process:
            try:
                progress(checkpoints)
                yield
            except BaseException:
                print(log.read_text()[-20_000:])
                raise
            finally:
                process.kill()

    with (
        server(arguments=("--advertise", address), num_partitions=len(PARTITIONS)) as running,
        gate(address, lambda: running.kafka) as before,
    ):
        with Wire(running.kafka) as wire:
            for topic in ("numbers", *STRATEGIES):
                wire.create(topic, partitions=len(PARTITIONS))
        feeder, copies = Feeder(running.kafka), Copies(running.kafka)
        feeder.start()
        try:
            for lost in ("requests", "responses"):
                with flink():
                    # The checkpoint of these commits is complete. The server has none of them, or all.
                    before.withhold(lost)
                    wait_for(lambda: all(map(before.has_withheld, STRATEGIES)), "commits of both sinks")
            with flink():
                running.kill()
                running.start()
                # The first one may have been complete before.
                progress(checkpoints)
                progress(checkpoints)
                # The next checkpoint is not complete. Its successor aborts these transactions.
                wait_for(lambda: with_open(running.kafka) == set(STRATEGIES), "open transactions")
            with flink():
                written = feeder.finish()
                copies.read(written)
                wait_for(lambda: not with_open(running.kafka), "the end of all transactions")
        finally:
            feeder.finish()
        copies.read(written)
        copies.consumer.close()
    assert REFUSED not in log.read_text()
    assert copies.found == {strategy: Counter(range(written)) for strategy in STRATEGIES}
