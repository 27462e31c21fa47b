"""Elections, reassignments, log directories, the quorum and features, as a Kafka broker with one replica answers.

The expected codes and messages are those of Apache Kafka 4.3.1 for the same requests.
"""

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


def test_nothing_is_being_reassigned(wire: Wire, topic: str) -> None:
    wire.create(topic)
    request = m.ListPartitionReassignmentsRequest
    named = request.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 9])
    for topics in (None, [], [named]):
        answer = wire.ask(request(topics=topics), 0)
        assert (answer.error_code, answer.error_message, answer.topics) == (Code.NONE, None, [])


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


@pytest.mark.parametrize("version", [0, 1, 2])
def test_there_are_no_features_to_update(wire: Wire, version: int) -> None:
    request = m.UpdateFeaturesRequest
    update = request.FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
    answer = wire.ask(request(feature_updates=[update]), version)
    assert answer.error_code == Code.INVALID_UPDATE_VERSION
    assert answer.error_message == (
        "The update failed for all features since the following feature had an error: Invalid update version 2 for "
        "feature transaction.version. Local controller 1 does not support this feature."
    )
    assert answer.results == []
    assert wire.ask(request(feature_updates=[]), version).error_code == Code.NONE


def resources(wire: Wire, *kinds: int, version: int = 1) -> set[tuple[str, int]]:
    answer = wire.ask(m.ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert answer.error_code == Code.NONE
    return {(each.resource_name, each.resource_type) for each in answer.config_resources}


def test_what_has_a_configuration_is_listed(wire: Wire, topic: str) -> None:
    wire.create(topic)
    topics, brokers = resources(wire, 2), resources(wire, 4)
    assert {(topic, 2), ("__consumer_offsets", 2)} <= topics
    assert brokers == {("1", 4)}
    assert resources(wire) == resources(wire, 2, 4, 4, 16) == topics | brokers
    for none in (8, 16, 32):
        assert resources(wire, none) == set()
    assert resources(wire, version=0) == set()
    for unknown in (0, 99):
        answer = wire.ask(m.ListConfigResourcesRequest(resource_types=[2, unknown]), 1)
        assert (answer.error_code, answer.config_resources) == (Code.UNSUPPORTED_VERSION, [])
    described = [
        m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        for name, kind in resources(wire)
    ]
    answer = wire.ask(m.DescribeConfigsRequest(resources=described), 4)
    assert {each.error_code for each in answer.results} == {0}, "what is listed can be described"


def test_settings_that_were_given_are_static(wire: Wire) -> None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=["socket.request.max.bytes", "num.partitions"]
    )
    [answer] = wire.ask(m.DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
    static, default = 4, 5
    told = {each.name: (each.config_source, [(s.value, s.source) for s in each.synonyms]) for each in answer.configs}
    given = str(4 << 20)
    assert told["socket.request.max.bytes"] == (static, [(given, static), ("104857600", default)])
    assert told["num.partitions"] == (default, [("1", default)])


def test_throttles_can_be_removed_where_there_are_none(wire: Wire, topic: str) -> None:
    """`kafka-reassign-partitions --verify` does so."""
    wire.create(topic)
    request = m.IncrementalAlterConfigsRequest
    delete = 1

    def removed(kind: int, name: str, key: str, operation: int = delete) -> int:
        config = request.AlterableConfig(name=key, config_operation=operation, value="1")
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        return int(wire.ask(request(resources=[resource]), 1).responses[0].error_code)

    assert removed(4, "1", "leader.replication.throttled.rate") == Code.NONE
    assert removed(2, topic, "follower.replication.throttled.replicas") == Code.NONE
    assert removed(4, "1", "leader.replication.throttled.rate", operation=0) == Code.INVALID_REQUEST
