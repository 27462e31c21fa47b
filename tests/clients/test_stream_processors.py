"""Stream processors that keep state in compacted topics, unmodified: Quix Streams and Faust."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.harness.waiting import wait_for

from headrace.testing import Server, server

ROOT = Path(__file__).parents[2]
# Both pin other versions of Kafka clients than the tests use, so they have an environment of their own.
BIN = ROOT / "build/streams/bin"
PROGRAMS = Path(__file__).parent / "streams"
WORDS = [f"word-{number}" for number in range(10)]
EACH = 50

pytestmark = pytest.mark.streams


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


def write_lines(kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for _ in range(EACH):
        for word in WORDS:
            producer.produce("lines", json.dumps({"word": word}), key=word)
    assert producer.flush(30) == 0


def totals(kafka: str, wanted: int) -> dict[str, int]:
    """Return the newest total of each word, once every total is at least `wanted`, or after a minute."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("counts", 0, 0)])
    found: dict[str, int] = {}
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and (len(found) < len(WORDS) or min(found.values()) < wanted):
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                value = json.loads(message.value() or b"")
                found[value["word"]] = value["total"]
    finally:
        consumer.close()
    return found


def policies(kafka: str, prefix: str) -> list[str]:
    """Return the cleanup policy of each topic with a changelog in its name."""
    admin = AdminClient({"bootstrap.servers": kafka})
    names = [name for name in admin.list_topics(timeout=30).topics if "changelog" in name and prefix in name]
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    return [future.result()["cleanup.policy"].value for future in asked.values()]


def test_quix_streams_restores_a_table_from_its_changelog(running: Server, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for turn in (1, 2):
        write_lines(running.kafka)
        arguments = (PROGRAMS / "quix_words.py", running.kafka, folder, EACH * len(WORDS))
        command = [str(BIN / "python"), *map(str, arguments)]
        subprocess.run(command, check=True, timeout=120, capture_output=True)
        assert totals(running.kafka, EACH * turn) == dict.fromkeys(WORDS, EACH * turn)
        # The second run has only the changelog.
        shutil.rmtree(folder)
    assert policies(running.kafka, "words") == ["compact"]


def is_ready(log: Path) -> bool:
    """Whether Faust has restored its table."""
    return "Worker ready" in log.read_text()


def is_committed(kafka: str, offset: int) -> bool:
    """Whether the position of Faust's group in the topic of lines is an offset."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "faust-words"})
    try:
        [found] = consumer.committed([TopicPartition("lines", 0)], timeout=30)
    finally:
        consumer.close()
    return bool(found.offset == offset)


def test_faust_restores_a_table_from_its_changelog(running: Server, tmp_path: Path) -> None:
    environment = {**os.environ, "FAUST_SERVER": running.kafka, "FAUST_FOLDER": str(tmp_path)}
    command = [str(BIN / "faust"), "-A", "faust_words:application", "worker", "-l", "info"]
    write_lines(running.kafka)
    for turn in (1, 2):
        log = tmp_path / f"log-{turn}"
        with log.open("wb") as output:
            worker = subprocess.Popen(command, cwd=PROGRAMS, env=environment, stdout=output, stderr=output)
            try:
                # Faust 0.15.3 seeks to the committed offset when its table is restored, and loses count of the records
                # that it has fetched by then.
                wait_for(partial(is_ready, log), "the restored table")
                if turn == 2:
                    write_lines(running.kafka)
                found = totals(running.kafka, EACH * turn)
                # Its stop does not always commit the last record, which would be counted again.
                wait_for(partial(is_committed, running.kafka, len(WORDS) * EACH * turn), "the commit")
            finally:
                # The table is in memory, and gone then.
                worker.send_signal(signal.SIGTERM)
                worker.wait(60)
        assert found == dict.fromkeys(WORDS, EACH * turn), log.read_text()
    # Faust names both policies.
    assert [policy.split(",")[0] for policy in policies(running.kafka, "totals")] == ["compact"]
