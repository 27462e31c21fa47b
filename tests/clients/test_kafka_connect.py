"""Kafka Connect copies a file into a topic exactly once, and the topic into a file; one of its workers is killed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.connect import TOPIC, Committed, Files, Worker, owner
from tests.harness.wire import Wire

from headrace.testing import Server, server

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
LINES = 1_000


@pytest.fixture
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        with Wire(started.kafka) as wire:
            wire.create(TOPIC)
        yield started


def test_lines_are_copied_once_although_a_worker_is_killed(running: Server, tmp_path: Path) -> None:
    files, committed = Files(tmp_path), Committed(running.kafka)

    def more() -> bool:
        files.add(20)
        return committed.reached(LINES)

    files.add(400)
    with ExitStack() as stack:
        workers = [Worker(running.kafka, tmp_path)]
        stack.callback(workers[0].kill)
        files.copy_with(workers[0])
        workers[0].until(lambda: committed.reached(1), "the first lines")
        workers.append(Worker(running.kafka, tmp_path))
        stack.callback(workers[1].kill)
        files.add(300)
        workers[1].until(lambda: owner(workers[1]), "the second worker")
        workers[1].until(lambda: committed.reached(401), "more lines")
        running_it = owner(workers[1])
        killed = next(each for each in workers if each.name == running_it)
        killed.kill()
        left = next(each for each in workers if each is not killed)
        files.add(300)
        # The connector keeps its last lines until more come, if there are more than in a batch.
        left.until(more, "all lines")
        left.until(lambda: files.copied(LINES), "the lines in the other file")
    committed.consumer.close()
    committed.check()
    files.check()
