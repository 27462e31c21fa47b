"""DescribeQuorum: the broker is its own quorum (KIP-595)."""

from typing import Any

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


def quorum(wire: Wire, topic: str, *indexes: int, version: int = 2) -> Any:
    request = m.DescribeQuorumRequest
    parts = [request.PartitionData(partition_index=index) for index in indexes]
    return wire.ask(request(topics=[request.TopicData(topic_name=topic, partitions=parts)]), version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_broker_is_its_own_quorum(wire: Wire, version: int) -> None:
    answer = quorum(wire, "__cluster_metadata", 0, version=version)
    controller = wire.metadata().controller_id
    [[partition]] = [topic.partitions for topic in answer.topics]
    assert (answer.error_code, partition.error_code, partition.leader_id) == (0, 0, controller)
    assert [voter.replica_id for voter in partition.current_voters] == [controller]
    assert partition.current_voters[0].log_end_offset == partition.high_watermark
    assert partition.observers == []
    if version == 2:
        [node] = answer.nodes
        [listener] = node.listeners
        [broker] = wire.metadata().brokers
        assert (node.node_id, listener.host, listener.port) == (controller, broker.host, broker.port)


@pytest.mark.parametrize(("name", "indexes"), [("__cluster_metadata", [1]), ("__cluster_metadata", [0, 0]), ("x", [0])])
def test_another_partition_has_no_quorum(wire: Wire, name: str, indexes: list[int]) -> None:
    [topic] = quorum(wire, name, *indexes).topics
    assert [part.error_code for part in topic.partitions] == [Code.UNKNOWN_TOPIC_OR_PARTITION] * len(indexes)
