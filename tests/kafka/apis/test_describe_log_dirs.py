"""DescribeLogDirs: one log directory, and the sizes of its partitions (KIP-113)."""

import pytest
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.protocol.messages import (
    DescribeLogDirsRequest,
)


def log_dirs(wire: Wire, asked: dict[str, list[int]] | None, version: int = 4) -> dict[tuple[str, int], int]:
    """(topic, partition) -> bytes, as DescribeLogDirs returns them."""
    topics = None
    if asked is not None:
        topics = [
            DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=numbers)
            for name, numbers in asked.items()
        ]
    (directory,) = wire.ask(DescribeLogDirsRequest(topics=topics), version).results
    assert (directory.error_code, directory.log_dir) == (0, "redis")
    return {
        (topic.name, each.partition_index): each.partition_size
        for topic in directory.topics
        for each in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_the_size_of_a_partition_is_that_of_its_batches(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic, 2)
    sent = batch(b"x" * 100)
    wire.produce(topic, sent)
    wire.produce(topic, batch(b"y" * 100))
    assert log_dirs(wire, {topic: [0, 1]}, version) == {(topic, 0): 2 * len(sent), (topic, 1): 0}
    assert log_dirs(wire, None, version)[topic, 0] == 2 * len(sent)


def test_missing_partitions_are_omitted_and_none_is_listed_twice(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert log_dirs(wire, {topic: [0, 0, 7, -1], "nowhere": [0]}) == {(topic, 0): 0}
    assert log_dirs(wire, {}) == {}


def test_a_partition_named_thousands_of_times_is_listed_once(wire: Wire, topic: str) -> None:
    wire.create(topic)
    asked = {topic: [0] * 4_000 + list(range(4_000))}
    assert log_dirs(wire, asked) == {(topic, 0): 0}


def test_a_native_topic_has_the_size_that_redis_says(wire: Wire, topic: str) -> None:
    wire.create(topic, headrace_storage="native")
    wire.produce(topic, batch(b"x" * 1000))
    assert log_dirs(wire, {topic: [0]})[topic, 0] > 1000


def test_there_is_one_log_directory(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    [described] = wire.ask(m.DescribeLogDirsRequest(topics=None), 5).results
    request = m.AlterReplicaLogDirsRequest

    def moved(path: str, version: int = 2) -> dict[tuple[str, int], int]:
        topics = [
            request.AlterReplicaLogDirTopic(name=topic, partitions=[0, 9]),
            request.AlterReplicaLogDirTopic(name="nope", partitions=[0]),
        ]
        answer = wire.ask(request(dirs=[request.AlterReplicaLogDir(path=path, topics=topics)]), version)
        return {
            (each.topic_name, part.partition_index): part.error_code
            for each in answer.results
            for part in each.partitions
        }

    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    for version in (1, 2):
        assert moved(described.log_dir, version) == {(topic, 0): 0, (topic, 9): unknown, ("nope", 0): unknown}
    nowhere = Code.LOG_DIR_NOT_FOUND
    assert moved("/elsewhere") == {(topic, 0): nowhere, (topic, 9): nowhere, ("nope", 0): nowhere}
