"""Kafka Streams counts words exactly once, while the application and the server are killed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.wire import Wire
from tests.harness.word_count import TOPICS, Counts, Lines, application, compiled

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(600)]
PARTITIONS = 2
LINES, WORDS = 100, 5


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=PARTITIONS) as started:
        with Wire(started.kafka) as wire:
            for topic in TOPICS:
                wire.create(topic, partitions=PARTITIONS)
        yield started


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("classes"))


def test_each_word_is_counted_once(running: Server, classes: str, tmp_path: Path) -> None:
    state, log = tmp_path / "state", tmp_path / "application.log"
    log.touch()
    lines, counts = Lines(running.kafka, PARTITIONS), Counts(running.kafka, PARTITIONS)
    with application(running.kafka, state, classes, log):
        lines.write(LINES)
        counts.read(1, log)
    # Its successor has its state, and fences it.
    with application(running.kafka, state, classes, log):
        lines.write(LINES)
        counts.read(LINES * WORDS + 1, log)
    # This one restores its state from the changelog. Its predecessor's transaction ends by its timeout.
    shutil.rmtree(state)
    with application(running.kafka, state, classes, log):
        lines.write(LINES)
        counts.read(2 * LINES * WORDS + 1, log)
        running.kill()
        running.start()
        lines.write(LINES)
        counts.read(lines.written.total(), log)
    counts.consumer.close()
    counts.check(lines.written)
