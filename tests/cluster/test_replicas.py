"""Replication factors over several brokers: the values for clients, the same from all APIs."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from tests.harness.brokers import OverOneRedis, brokers
from tests.harness.waiting import wait_for
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m

PARTITIONS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[OverOneRedis]:
    with brokers(3) as started:
        yield started


def create(wire: Wire, name: str, factor: int, partitions: int = PARTITIONS) -> Any:
    topic = m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=[]
    )
    [answer] = wire.ask(m.CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7).topics
    return answer


def replicas(wire: Wire, name: str) -> dict[int, list[int]]:
    [topic] = wire.metadata(name).topics
    for part in topic.partitions:
        assert part.replica_nodes == part.isr_nodes
        assert part.replica_nodes[:1] == ([part.leader_id] if part.leader_id >= 0 else [])
    request = m.DescribeTopicPartitionsRequest(topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=name)])
    [pages] = wire.ask(request, 0).topics
    found = {part.partition_index: part.replica_nodes for part in topic.partitions}
    assert found == {part.partition_index: part.replica_nodes for part in pages.partitions}
    assert all(part.isr_nodes == part.replica_nodes for part in pages.partitions)
    return found


def test_every_broker_names_the_same_replicas(cluster: OverOneRedis) -> None:
    nodes = cluster.running
    made = cluster.asked(nodes[0], lambda wire: create(wire, "three", 3))
    assert (made.error_code, made.replication_factor) == (0, 3)
    made = cluster.asked(nodes[1], lambda wire: create(wire, "two", 2))
    assert (made.error_code, made.replication_factor) == (0, 2)
    cluster.asked(nodes[1], lambda wire: create(wire, "one", 1))
    for name, factor in (("one", 1), ("two", 2), ("three", 3)):
        cluster.led(name, PARTITIONS)
        told = [cluster.asked(node, partial(replicas, name=name)) for node in nodes]
        assert told[0] == told[1] == told[2]
        assert len(told[0]) == PARTITIONS
        for found in told[0].values():
            assert len(found) == len(set(found)) == factor
            assert set(found) <= set(nodes)
    refused = cluster.asked(nodes[2], lambda wire: create(wire, "four", 4))
    assert refused.error_code == Code.INVALID_REPLICATION_FACTOR
    assert "only 3 broker(s) are registered" in refused.error_message


def test_those_that_take_over_are_the_replicas(cluster: OverOneRedis) -> None:
    nodes = cluster.running
    for name, factor in (("taken", 2), ("whole", 3)):
        cluster.asked(nodes[0], partial(create, name=name, factor=factor))
        cluster.led(name, PARTITIONS)
    before = cluster.asked(nodes[0], lambda wire: replicas(wire, "taken"))
    gone = nodes[-1]
    cluster.servers[gone].stop()
    left = [node for node in nodes if node != gone]
    try:
        cluster.agree(left)
        for name in ("taken", "whole"):
            cluster.led(name, PARTITIONS)
        after = cluster.asked(left[0], lambda wire: replicas(wire, "taken"))
        for index, found in before.items():
            heirs = [node for node in found if node != gone]
            assert after[index][0] == heirs[0]
            assert sorted(after[index]) == left
        # A factor that was possible stays: fewer are in sync until the broker is back.
        assert {len(found) for found in cluster.asked(left[0], lambda wire: replicas(wire, "whole")).values()} == {2}
        refused = cluster.asked(left[0], lambda wire: create(wire, "late", 3))
        assert refused.error_code == Code.INVALID_REPLICATION_FACTOR
    finally:
        cluster.start(gone)
        cluster.agree(nodes)
    back = lambda: cluster.asked(left[0], lambda wire: replicas(wire, "taken")) == before  # noqa: E731
    wait_for(back, "the replicas as they were")


def test_reassignments_know_the_replicas(cluster: OverOneRedis) -> None:
    nodes = cluster.running
    cluster.asked(nodes[0], lambda wire: create(wire, "assigned", 2, 1))
    cluster.led("assigned", 1)

    def ask(wire: Wire) -> None:
        [present] = replicas(wire, "assigned").values()
        [other] = set(nodes) - set(present)
        request = m.AlterPartitionReassignmentsRequest
        for wanted, code in (
            (present, Code.NONE),
            (present[::-1], Code.NONE),
            ([present[0], other], Code.INVALID_REPLICA_ASSIGNMENT),
            (present[:1], Code.INVALID_REPLICA_ASSIGNMENT),
        ):
            part = request.ReassignablePartition(partition_index=0, replicas=wanted)
            topic = request.ReassignableTopic(name="assigned", partitions=[part])
            [[answer]] = [each.partitions for each in wire.ask(request(topics=[topic]), 1).responses]
            assert answer.error_code == code, wanted

    cluster.asked(nodes[0], ask)


def test_leaders_of_consumer_offsets_are_shared_out(cluster: OverOneRedis) -> None:
    nodes = cluster.running
    told = []
    for node in nodes:
        [topic] = cluster.asked(node, lambda wire: wire.metadata("__consumer_offsets").topics)
        told.append(([part.leader_id for part in topic.partitions], topic.topic_id))
    assert told[0] == told[1] == told[2]
    assert set(told[0][0]) == set(nodes)
    assert told[0][1] != UUID(int=0)


def test_the_others_observe_the_quorum(cluster: OverOneRedis) -> None:
    nodes = cluster.running
    request = m.DescribeQuorumRequest
    named = request.TopicData(topic_name="__cluster_metadata", partitions=[request.PartitionData(partition_index=0)])
    for node in nodes:
        answer = cluster.asked(node, lambda wire: wire.ask(request(topics=[named]), 2))
        [[partition]] = [topic.partitions for topic in answer.topics]
        assert partition.leader_id == node
        assert [each.replica_id for each in partition.current_voters] == [node]
        assert sorted(each.replica_id for each in partition.observers) == [other for other in nodes if other != node]
