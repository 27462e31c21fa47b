"""ElectLeaders, as a Kafka broker with one replica answers it (KIP-460)."""

from typing import Any

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m

PREFERRED, UNCLEAN = 0, 1


def elect(wire: Wire, kind: int, *named: tuple[str, list[int]], version: int = 2) -> Any:
    parts = [m.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in named]
    return wire.ask(m.ElectLeadersRequest(election_type=kind, topic_partitions=parts, timeout_ms=1_000), version)


def codes(answer: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.topic, each.partition_id, each.error_code)
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]


@pytest.mark.parametrize("kind", [PREFERRED, UNCLEAN])
def test_no_election_is_needed(wire: Wire, topic: str, kind: int) -> None:
    wire.create(topic, 2)
    answer = elect(wire, kind, (topic, [0, 7, 0, -1]), ("nope", [0]))
    assert answer.error_code == Code.NONE
    assert codes(answer) == [
        (topic, 0, Code.ELECTION_NOT_NEEDED),
        (topic, 7, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, 0, Code.ELECTION_NOT_NEEDED),
        (topic, -1, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("nope", 0, Code.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    messages = [each.error_message for each in answer.replica_election_results[0].partition_result[:2]]
    assert messages == ["Leader election not needed for topic partition.", f"No such partition as {topic}-7"]
    assert codes(elect(wire, PREFERRED, (topic, [1]), version=0)) == [(topic, 1, Code.ELECTION_NOT_NEEDED)]


def test_an_election_of_all_partitions_names_every_topic(wire: Wire, topic: str) -> None:
    wire.create(topic, 2)
    answer = wire.ask(m.ElectLeadersRequest(topic_partitions=None, timeout_ms=1_000), 2)
    assert answer.error_code == Code.NONE
    found = {each.topic: each.partition_result for each in answer.replica_election_results}
    assert found[topic] == []
    assert found["__consumer_offsets"] == []


def test_an_unknown_kind_of_election(wire: Wire, topic: str) -> None:
    wire.create(topic)
    answer = elect(wire, 2, (topic, [0]))
    assert answer.error_code == Code.INVALID_REQUEST
    assert codes(answer) == [(topic, 0, Code.INVALID_REQUEST)]
