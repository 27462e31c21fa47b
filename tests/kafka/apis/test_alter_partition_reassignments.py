"""AlterPartitionReassignments, as a Kafka broker with one replica answers it (KIP-455)."""

from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


def reassign(wire: Wire, topic: str, *wanted: tuple[int, list[int] | None]) -> list[tuple[int, str | None]]:
    request = m.AlterPartitionReassignmentsRequest
    parts = [request.ReassignablePartition(partition_index=index, replicas=replicas) for index, replicas in wanted]
    answer = wire.ask(request(topics=[request.ReassignableTopic(name=topic, partitions=parts)]), 1)
    assert answer.error_code == Code.NONE
    [found] = answer.responses
    return [(each.error_code, each.error_message) for each in found.partitions]


def test_only_the_replicas_that_there_are_can_be_assigned(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    invalid = "The manual partition assignment includes "
    assert reassign(wire, topic, (0, [1]), (1, [1]), (0, [2]), (0, [1, 1]), (0, []), (0, None), (5, [1])) == [
        (Code.NONE, None),
        (Code.NONE, None),
        (Code.INVALID_REPLICA_ASSIGNMENT, f"{invalid}broker 2, but no such broker is registered."),
        (Code.INVALID_REPLICA_ASSIGNMENT, f"{invalid}the broker 1 more than once."),
        (Code.INVALID_REPLICA_ASSIGNMENT, f"{invalid}an empty replica list."),
        (Code.NO_REASSIGNMENT_IN_PROGRESS, None),
        (Code.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:5."),
    ]
    missing = (Code.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nope.")
    assert reassign(wire, "nope", (0, [1]), (1, None)) == [missing, missing]
