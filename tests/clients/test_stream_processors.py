"""Stream processors that keep state in compacted topics, unmodified: Quix Streams and Faust."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

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


def test_faust_restores_a_table_from_its_changelog(running: Server, tmp_path: Path) -> None:
    environment = {**os.environ, "FAUST_SERVER": running.kafka, "FAUST_FOLDER": str(tmp_path)}
    command = [str(BIN / "faust"), "-A", "faust_words:application", "worker", "-l", "info"]
    for turn in (1, 2):
        write_lines(running.kafka)
        with (tmp_path / f"log-{turn}").open("wb") as log:
            worker = subprocess.Popen(command, cwd=PROGRAMS, env=environment, stdout=log, stderr=log)
            try:
                found = totals(running.kafka, EACH * turn)
            finally:
                # A clean stop commits what was read; the table in memory is gone.
                worker.send_signal(signal.SIGTERM)
                worker.wait(60)
        assert found == dict.fromkeys(WORDS, EACH * turn), (tmp_path / f"log-{turn}").read_text()
    # Faust names both policies.
    assert [policy.split(",")[0] for policy in policies(running.kafka, "totals")] == ["compact"]
