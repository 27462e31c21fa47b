"""Kafka Streams and Kafka Connect on three brokers over a Redis Cluster, exactly once, while any of them is killed.

The same programs on one server: tests/clients/test_kafka_streams.py and tests/clients/test_kafka_connect.py.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.cluster.members import Threads
from tests.harness import connect, word_count
from tests.harness.brokers import Brokers, brokers_at
from tests.harness.connect import Committed, Files, Worker, owner
from tests.harness.redis_cluster import Node, RedisCluster
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire
from tests.harness.word_count import Counts, Lines, application, compiled

from headrace.protocol.messages import ListTransactionsRequest
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription

pytestmark = [pytest.mark.maven, pytest.mark.timeout(900)]
PARTITIONS = 6
"""Of each topic of the application: every broker leads some."""


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(calm=True) as running:
        yield running


@pytest.fixture
def three(cluster: RedisCluster) -> Iterator[Brokers]:
    with brokers_at(cluster.url, 3, num_partitions=PARTITIONS) as running:
        yield running


def created(three: Brokers, *topics: str, partitions: int) -> None:
    for topic in topics:
        three.asked(1, partial(Wire.create, topic=topic, partitions=partitions))
        three.led(topic, partitions)


def kill_and_start(three: Brokers, node: int, between: Callable[[], None]) -> None:
    """Kill a broker, wait for something that the others must do without it, and start it again."""
    three.servers[node].kill()
    between()
    three.start(node)
    three.agree([1, 2, 3])


def coordinator_of_transactions(three: Brokers, prefix: str) -> int:
    """A broker that coordinates transactional IDs that begin so."""
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])

    def coordinates(node: int) -> bool:
        states = three.asked(node, lambda wire: wire.ask(request, 0)).transaction_states
        return any(each.transactional_id.startswith(prefix) for each in states)

    found: list[int] = []

    def look() -> bool:
        found[:] = [node for node in three.running if coordinates(node)]
        return bool(found)

    wait_for(look, f"a coordinator of {prefix}")
    return found[0]


def primary_with(cluster: RedisCluster, topic: str) -> Node:
    """The node of the cluster that has the topic's first partition."""
    with LogReader(cluster.url) as log:
        return cluster.primary_of(log.topics(Subscription((topic,)))[topic].streams[0])


class Writing(Threads):
    """Writes lines of words from when it is made to `stop`."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        super().__init__(1)

    def work(self, _name: str) -> None:
        """Some words at a time."""
        while not self.stopping.wait(0.1):
            self._lines.write(2)


def test_each_word_is_counted_once(cluster: RedisCluster, three: Brokers, tmp_path: Path) -> None:
    created(three, *word_count.TOPICS, partitions=PARTITIONS)
    (tmp_path / "classes").mkdir()
    classes, state, log = compiled(tmp_path / "classes"), tmp_path / "state", tmp_path / "application.log"
    log.touch()
    lines, counts = Lines(three.kafka, PARTITIONS), Counts(three.kafka, PARTITIONS)

    def go_on() -> None:
        """More lines are counted than were written until now."""
        counts.read(lines.written.total() + 1, log)

    with Writing(lines) as writing:
        with application(three.kafka, state, classes, log):
            go_on()
            kill_and_start(three, three.coordinator(1, word_count.APPLICATION), go_on)
            kill_and_start(three, coordinator_of_transactions(three, word_count.APPLICATION), go_on)
            kill_and_start(three, three.led("counts", PARTITIONS)[0], go_on)
            cluster.kill(primary_with(cluster, "counts"))
            go_on()
        # Its successor has its state, and fences it, with a broker less.
        three.servers[3].kill()
        with application(three.kafka, state, classes, log):
            go_on()
        three.start(3)
        three.agree([1, 2, 3])
        # This one restores its state from the changelog. Its predecessor's transaction ends by its timeout.
        shutil.rmtree(state)
        with application(three.kafka, state, classes, log):
            kill_and_start(three, three.coordinator(1, word_count.APPLICATION), go_on)
            writing.stop()
            counts.read(lines.written.total(), log)
    counts.consumer.close()
    counts.check(lines.written)


def test_lines_are_copied_once(cluster: RedisCluster, three: Brokers, tmp_path: Path) -> None:
    created(three, connect.TOPIC, partitions=1)
    files, committed = Files(tmp_path), Committed(three.kafka)

    def copied_by(worker: Worker) -> None:
        """Lines that are added now are copied."""
        wanted = len(committed.values) + 200

        def copied() -> bool:
            files.add(20)
            return committed.reached(wanted)

        worker.until(copied, "more lines")

    with ExitStack() as stack:
        workers = [Worker(three.kafka, tmp_path)]
        stack.callback(workers[0].kill)
        files.add(20)
        files.copy_with(workers[0])
        copied_by(workers[0])
        workers.append(Worker(three.kafka, tmp_path))
        stack.callback(workers[1].kill)
        workers[1].until(lambda: owner(workers[1]), "the second worker")
        kill_and_start(three, three.led(connect.TOPIC, 1)[0], lambda: copied_by(workers[1]))
        kill_and_start(three, three.coordinator(1, connect.GROUP), lambda: copied_by(workers[1]))
        cluster.kill(primary_with(cluster, connect.TOPIC))
        copied_by(workers[1])
        workers[1].until(lambda: owner(workers[1]), "a worker with the task")
        running_it = owner(workers[1])
        killed = next(each for each in workers if each.name == running_it)
        left = next(each for each in workers if each is not killed)
        killed.kill()
        # Its transaction is still open, and its coordinator dies with it.
        kill_and_start(three, coordinator_of_transactions(three, connect.GROUP), lambda: copied_by(left))
        left.until(lambda: files.copied(len(committed.values)), "the lines in the other file")
    committed.consumer.close()
    committed.check()
    files.check()
