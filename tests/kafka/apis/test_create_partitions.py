"""CreatePartitions: topics grow, and what is refused (KIP-195)."""

from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    CreatePartitionsRequest,
)
from headrace.testing import server


def grow(wire: Wire, name: str, count: int, brokers: list[int] | None = None, *, dry: bool = False) -> int:
    assignments = (
        None
        if brokers is None
        else [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=[each]) for each in brokers]
    )
    asked = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    answer = wire.ask(CreatePartitionsRequest(topics=[asked], timeout_ms=5_000, validate_only=dry), 3)
    code: int = answer.results[0].error_code
    return code


def test_partitions_are_added(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"old"))
    assert grow(wire, topic, 3) == 0
    assert len(wire.metadata(topic).topics[0].partitions) == 3
    assert [wire.offset(topic, -1, partition=index).offset for index in range(3)] == [1, 0, 0]
    assert wire.produce(topic, batch(b"new"), partition=2).error_code == 0


def test_added_partitions_survive_a_restart() -> None:
    with server() as one:
        with Wire(one.kafka) as client:
            client.create("grown")
            assert grow(client, "grown", 2) == 0
            client.produce("grown", batch(b"x"), partition=1)
        one.restart()
        with Wire(one.kafka) as client:
            assert client.offset("grown", -1, partition=1).offset == 1


def test_growth_that_is_refused(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=2)
    assert grow(wire, topic, 2) == grow(wire, topic, 1) == Code.INVALID_PARTITIONS
    assert grow(wire, "missing", 4) == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(wire, topic, 4, [1]) == grow(wire, topic, 4, [1, 2]) == Code.INVALID_REPLICA_ASSIGNMENT
    assert grow(wire, topic, 3, dry=True) == 0
    assert len(wire.metadata(topic).topics[0].partitions) == 2
    assert grow(wire, topic, 3, [1]) == 0
