"""Changing what is there: configurations, partitions, records, positions (KIP-339, 195, 107, 496, 320, 700)."""

import pytest
from tests.harness.wire import Wire, batch

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetForLeaderEpochRequest,
)
from headrace.testing import Server, server

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
DEFAULT = 5


def alter(wire: Wire, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, dry: bool = False) -> int:
    """The error code of changing a configuration."""
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry), 1)
    code: int = answer.responses[0].error_code
    assert (answer.responses[0].error_message is None) == (code == 0)
    return code


def _told(wire: Wire, name: str, key: str, text: str, version: int) -> str:
    """The error message of setting a key of a topic, in a version."""
    changed = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value=text)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC, resource_name=name, configs=[changed]
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), version)
    return str(answer.responses[0].error_message)


def value(wire: Wire, name: str, key: str) -> str | None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=name, configuration_keys=[key]
    )
    answer = wire.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=False), 4)
    found: str | None = answer.results[0].configs[0].value
    return found


def test_a_configuration_is_set_and_deleted_again(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert alter(wire, topic, ("retention.ms", SET, "60000"), ("max.message.bytes", SET, "2000")) == 0
    assert (value(wire, topic, "retention.ms"), value(wire, topic, "max.message.bytes")) == ("60000", "2000")
    assert wire.produce(topic, batch(b"x" * 3000)).error_code == Code.MESSAGE_TOO_LARGE
    assert alter(wire, topic, ("max.message.bytes", DELETE, None)) == 0
    assert value(wire, topic, "retention.ms") == "60000", "the other one stays"
    assert wire.produce(topic, batch(b"x" * 3000)).error_code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "soon")], Code.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("no.such.key", SET, "1")], Code.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], Code.INVALID_CONFIG),
        ([("headrace.adopted", SET, "0")], Code.INVALID_CONFIG),
        ([("retention.ms", SET, None)], Code.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], Code.INVALID_REQUEST),
    ],
)
def test_a_change_that_is_refused_changes_nothing(
    wire: Wire, topic: str, changes: list[tuple[str, int, str | None]], code: Code
) -> None:
    wire.create(topic, retention_ms=5)
    assert alter(wire, topic, *changes) == code
    assert value(wire, topic, "retention.ms") == "5"


def test_items_are_added_to_lists_and_taken_from_them(wire: Wire, topic: str) -> None:
    wire.create(topic)
    key = "cleanup.policy"
    assert alter(wire, topic, (key, APPEND, "delete")) == 0
    assert value(wire, topic, key) == "delete", "once is enough"
    assert alter(wire, topic, (key, APPEND, "compact")) == Code.INVALID_CONFIG
    assert alter(wire, topic, (key, SUBTRACT, "compact")) == 0
    assert alter(wire, topic, (key, SUBTRACT, "delete")) == 0
    assert value(wire, topic, key) == "", "there may be none, since Kafka 4.1"
    assert alter(wire, topic, (key, SET, ",")) == Code.INVALID_CONFIG
    assert alter(wire, topic, (key, APPEND, "delete")) == 0
    assert value(wire, topic, key) == "delete"
    assert alter(wire, topic, (key, 9, "x")) == Code.INVALID_REQUEST


def test_a_value_that_is_much_too_long_is_refused_at_once(wire: Wire, topic: str) -> None:
    """To append a list to a list, or to take one from one, took hours of everybody's time."""
    wire.create(topic)
    long = ",".join(["delete"] * 100_000)
    for operation in (SET, APPEND, SUBTRACT):
        assert alter(wire, topic, ("cleanup.policy", operation, long)) == Code.INVALID_CONFIG
    assert alter(wire, topic, ("retention.ms", SET, " " * 5_000 + "1")) == Code.INVALID_CONFIG


@pytest.mark.parametrize("version", [0, 1])
def test_a_message_about_a_long_value_fits_into_its_version(wire: Wire, topic: str, version: int) -> None:
    """A string of version 0 has room for 32 767 bytes; the connection was closed."""
    wire.create(topic)
    assert "retention.ms" in _told(wire, topic, "retention.ms", "x" * 1_000, version)
    assert "unknown topic configuration" in _told(wire, topic, "\x7f" * 30_000, "1", version)


def test_what_only_adoption_sets_is_not_given(wire: Wire) -> None:
    with pytest.raises(AssertionError, match="only adoption sets it"):
        wire.create("given", headrace_storage="native", headrace_adopted="x")


def test_a_change_can_be_tried(wire: Wire, topic: str) -> None:
    wire.create(topic, retention_ms=5)
    assert alter(wire, topic, ("retention.ms", SET, "6"), dry=True) == 0
    assert alter(wire, topic, ("retention.ms", SET, "x"), dry=True) == Code.INVALID_CONFIG
    assert value(wire, topic, "retention.ms") == "5"


def test_what_is_no_topic_is_not_changed(wire: Wire) -> None:
    assert alter(wire, "1", ("log.retention.ms", SET, "1"), kind=BROKER) == Code.INVALID_REQUEST
    assert alter(wire, "x", ("a", SET, "1"), kind=9) == Code.INVALID_REQUEST
    assert alter(wire, "missing", ("retention.ms", SET, "1")) == Code.UNKNOWN_TOPIC_OR_PARTITION


def replace(wire: Wire, name: str, *given: tuple[str, str | None], kind: int = TOPIC, dry: bool = False) -> int:
    """The error code of replacing a configuration."""
    configs = [AlterConfigsRequest.AlterableConfig(name=key, value=text) for key, text in given]
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=dry), 2)
    code: int = answer.responses[0].error_code
    assert (answer.responses[0].error_message is None) == (code == 0)
    return code


def test_a_configuration_is_replaced_as_a_whole(wire: Wire, topic: str) -> None:
    wire.create(topic, retention_ms=5, max_message_bytes=2000)
    assert replace(wire, topic, ("max.message.bytes", "3000"), dry=True) == 0
    assert value(wire, topic, "max.message.bytes") == "2000", "that was a trial"
    assert replace(wire, topic, ("max.message.bytes", "3000")) == 0
    assert value(wire, topic, "max.message.bytes") == "3000"
    assert value(wire, topic, "retention.ms") == "604800000", "what is left out is the default again"
    assert replace(wire, topic) == 0
    assert value(wire, topic, "max.message.bytes") == "1048588"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([("retention.ms", "soon")], Code.INVALID_CONFIG),
        ([("no.such.key", "1")], Code.INVALID_CONFIG),
        ([("headrace.storage", "native")], Code.INVALID_CONFIG),
        ([("retention.ms", None)], Code.INVALID_REQUEST),
        ([("retention.ms", "1"), ("retention.ms", "2")], Code.INVALID_REQUEST),
    ],
)
def test_a_replacement_that_is_refused_changes_nothing(
    wire: Wire, topic: str, given: list[tuple[str, str | None]], code: Code
) -> None:
    wire.create(topic, retention_ms=5)
    assert replace(wire, topic, *given) == code
    assert value(wire, topic, "retention.ms") == "5"


def test_a_replacement_leaves_what_cannot_be_changed(wire: Wire, topic: str) -> None:
    wire.create(topic, headrace_storage="native", offset_sequence_bits=12, retention_ms=5)
    assert replace(wire, topic, ("retention.ms", "6")) == 0
    assert value(wire, topic, "headrace.storage") == "native"
    assert value(wire, topic, "offset.sequence.bits") == "12"
    assert value(wire, topic, "retention.ms") == "6"


def test_only_a_topic_that_is_there_has_its_configuration_replaced(wire: Wire) -> None:
    assert replace(wire, "1", ("log.retention.ms", "1"), kind=BROKER) == Code.INVALID_REQUEST
    assert replace(wire, "x", ("a", "1"), kind=9) == Code.INVALID_REQUEST
    assert replace(wire, "missing", ("retention.ms", "1")) == Code.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("storage", ["log", "native"])
def test_only_what_was_set_is_shown_as_set(wire: Wire, topic: str, storage: str) -> None:
    """Tools list the topics with settings of their own, and copy these, by where each value comes from."""
    wire.create(topic, headrace_storage=storage, retention_ms=5)
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    [told] = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert {entry.name for entry in told.configs if entry.config_source != DEFAULT} == {
        "headrace.storage",
        "retention.ms",
    }
    shown = {entry.name: entry for entry in told.configs}
    assert shown["headrace.streams"].read_only
    assert topic in shown["headrace.streams"].value


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


def test_records_are_deleted_up_to_an_offset(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"a", b"b", b"c"))
    assert wire.delete_records(topic, 1) == (0, 1)
    assert wire.offset(topic, -2).offset == 1
    assert wire.fetch(topic, 0).error_code == Code.OFFSET_OUT_OF_RANGE
    assert wire.delete_records(topic, 0) == (0, 1), "never back"
    assert wire.delete_records(topic, 4) == wire.delete_records(topic, -2) == (Code.OFFSET_OUT_OF_RANGE, -1)
    assert wire.delete_records(topic, -1) == (0, 3)
    assert wire.delete_records(topic, 0, partition=7) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1)


def test_positions_are_deleted(wire: Wire, topic: str) -> None:
    wire.create(topic, partitions=2)
    partitions = [
        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=index, committed_offset=5)
        for index in range(2)
    ]
    asked = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
    wire.ask(OffsetCommitRequest(group_id=topic, topics=[asked]), 8)

    def delete(group: str, *indexes: int) -> tuple[int, list[int]]:
        places = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        named = OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=places)
        answer = wire.ask(OffsetDeleteRequest(group_id=group, topics=[named]), 0)
        return answer.error_code, [one.error_code for each in answer.topics for one in each.partitions]

    assert delete(topic, 1, 7) == (0, [0, Code.UNKNOWN_TOPIC_OR_PARTITION])
    assert (wire.committed(topic, topic, 0), wire.committed(topic, topic, 1)) == (5, -1)
    assert delete("nobody", 0) == (Code.GROUP_ID_NOT_FOUND, [])


def test_where_a_leader_epoch_ends(wire: Wire, topic: str) -> None:
    wire.create(topic)
    wire.produce(topic, batch(b"a", b"b"))
    epoch = wire.metadata(topic).topics[0].partitions[0].leader_epoch

    def ask(name: str, wanted: int, current: int = -1) -> tuple[int, int, int]:
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
            partition=0, leader_epoch=wanted, current_leader_epoch=current
        )
        one = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=[asked])
        [found] = wire.ask(OffsetForLeaderEpochRequest(topics=[one]), 4).topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset

    assert ask(topic, epoch, epoch) == (0, epoch, 2)
    assert ask(topic, epoch + 1) == (0, -1, -1)
    assert ask(topic, epoch, epoch + 1) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert ask("missing", 0) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("version", [0, 1])
def test_the_cluster_is_its_one_broker(wire: Wire, running: Server, version: int) -> None:
    answer = wire.ask(DescribeClusterRequest(), version)
    [node] = answer.brokers
    assert (f"{node.host}:{node.port}", node.broker_id, answer.controller_id) == (running.kafka, 1, 1)
    assert answer.cluster_id == wire.metadata().cluster_id
    if version:
        refused = wire.ask(DescribeClusterRequest(endpoint_type=2), version)
        assert (refused.error_code, refused.brokers) == (Code.UNSUPPORTED_ENDPOINT_TYPE, [])


def log_dirs(wire: Wire, asked: dict[str, list[int]] | None, version: int = 4) -> dict[tuple[str, int], int]:
    """(topic, partition) -> bytes, as DescribeLogDirs tells them."""
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


def test_partitions_that_are_not_there_are_left_out_and_none_is_told_twice(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert log_dirs(wire, {topic: [0, 0, 7, -1], "nowhere": [0]}) == {(topic, 0): 0}
    assert log_dirs(wire, {}) == {}


def test_a_partition_named_thousands_of_times_is_told_once(wire: Wire, topic: str) -> None:
    wire.create(topic)
    asked = {topic: [0] * 4_000 + list(range(4_000))}
    assert log_dirs(wire, asked) == {(topic, 0): 0}


def test_a_native_topic_has_the_size_that_redis_says(wire: Wire, topic: str) -> None:
    wire.create(topic, headrace_storage="native")
    wire.produce(topic, batch(b"x" * 1000))
    assert log_dirs(wire, {topic: [0]})[topic, 0] > 1000
