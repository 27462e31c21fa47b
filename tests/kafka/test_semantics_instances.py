"""A group that OCI's instances use, as Kafka's clients and tools see it, on a real server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, committed, join

import oci
from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from headrace.testing import MovableClock
from headrace.testing.oci import GroupReader, OciClients, put

NAME = "shared"
GROUP = "everybody"


@pytest.fixture
def kafka(headrace_kafka: str) -> Iterator[Wire]:
    with Wire(headrace_kafka) as client:
        yield client


@pytest.fixture
def admin(headrace_kafka: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": headrace_kafka})


@pytest.fixture
def stream(headrace_oci: OciClients) -> Any:
    return headrace_oci.create_stream(NAME, 2)


@pytest.fixture
def start(headrace_oci: OciClients, stream: Any) -> Callable[..., GroupReader]:
    client = headrace_oci.stream_client()

    def make(instance: str, **details: Any) -> GroupReader:
        return GroupReader(client, stream.id, GROUP, instance, **details)

    return make


@pytest.fixture
def fill(headrace_oci: OciClients, stream: Any) -> Callable[[int], None]:
    """Put so many messages into one partition."""
    client = headrace_oci.stream_client()

    def make(count: int) -> None:
        put(client, stream.id, *("v" for _ in range(count)), key="one key")

    return make


def positions(wire: Wire) -> list[int]:
    return [committed_in(wire, partition) for partition in range(2)]


def committed_in(wire: Wire, partition: int) -> int:
    asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=NAME, partition_indexes=[partition])
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=[asked])]
    [answer] = wire.ask(OffsetFetchRequest(groups=groups), 8).groups
    return int(answer.topics[0].partitions[0].committed_offset)


def status(call: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call()
    return caught.value.status, caught.value.message


def test_kafka_s_tools_list_and_describe_who_reads_what(
    kafka: Wire, admin: AdminClient, start: Callable[..., GroupReader]
) -> None:
    first, second = start("alpha"), start("beta")
    for reader in (first, second, first):
        reader.get()

    listed = {one.group_id: one for one in kafka.ask(ListGroupsRequest(), 5).groups}
    assert (listed[GROUP].group_state, listed[GROUP].protocol_type) == ("Stable", "consumer")
    only_empty = kafka.ask(ListGroupsRequest(states_filter=["Empty"]), 5).groups
    assert GROUP not in [one.group_id for one in only_empty]
    [described] = kafka.ask(DescribeGroupsRequest(groups=[GROUP]), 5).groups
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "balanced",
    )

    found = admin.describe_consumer_groups([GROUP])[GROUP].result()
    assert found.state == ConsumerGroupState.STABLE
    shares = {
        member.client_id: [(each.topic, each.partition) for each in member.assignment.topic_partitions]
        for member in found.members
    }
    assert sorted(shares) == ["alpha", "beta"]
    assert sorted(each for share in shares.values() for each in share) == [(NAME, 0), (NAME, 1)]


def test_an_empty_group_is_listed_as_empty(
    kafka: Wire, start: Callable[..., GroupReader], headrace_clock: MovableClock
) -> None:
    reader = start("alpha")
    [described] = kafka.ask(DescribeGroupsRequest(groups=[GROUP]), 5).groups
    assert (described.group_state, described.members) == ("Empty", [])
    reader.get()
    headrace_clock.advance(seconds=31)
    [described] = kafka.ask(DescribeGroupsRequest(groups=[GROUP]), 5).groups
    assert (described.group_state, described.members) == ("Empty", [])


def test_kafka_sees_positions_and_lag(
    kafka: Wire, admin: AdminClient, start: Callable[..., GroupReader], fill: Callable[[int], None]
) -> None:
    fill(10)
    reader = start("alpha")
    assert sorted(positions(kafka)) == [0, 0]
    reader.get(limit=4)
    assert sorted(positions(kafka)) == [0, 0]
    reader.get(limit=1)
    assert sorted(positions(kafka)) == [0, 4]
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)])[GROUP].result()
    assert sorted(each.offset for each in asked.topic_partitions) == [0, 4]


def test_a_classic_join_is_refused_until_the_instances_have_gone_and_finds_their_positions(
    kafka: Wire,
    headrace_kafka: str,
    start: Callable[..., GroupReader],
    fill: Callable[[int], None],
    headrace_clock: MovableClock,
) -> None:
    fill(10)
    reader = start("alpha")
    reader.get(limit=6)
    reader.get(limit=1)
    assert join(kafka, GROUP).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    assert kafka.ask(JoinGroupRequest(group_id=GROUP, session_timeout_ms=30_000, protocol_type="consumer"), 3)
    headrace_clock.advance(seconds=31)

    consumer = Consumer({"bootstrap.servers": headrace_kafka, "group.id": GROUP, "auto.offset.reset": "error"})
    consumer.subscribe([NAME])
    try:
        read = consumer.consume(4, timeout=60)
        assert sorted(message.offset() or 0 for message in read) == [6, 7, 8, 9]
        # The consumer has the partitions now, so the instance cannot commit what it read before.
        code, message = status(reader.get)
        assert code == 400
        assert "unreserved partition" in message
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()

    fill(3)
    assert sorted(int(message.offset) for message in start("beta").get()) == [10, 11, 12]


def test_a_group_of_kafka_goes_on_through_oci(
    kafka: Wire, start: Callable[..., GroupReader], fill: Callable[[int], None]
) -> None:
    fill(10)
    for partition in range(2):
        assert commit(kafka, GROUP, {(NAME, partition): 3}) == [0]
    # The type is of no account: the group has positions.
    reader = start("alpha", start="LATEST")
    offsets = [int(message.offset) for message in reader.get()]

    assert offsets == [3, 4, 5, 6, 7, 8, 9]


def test_tools_reset_a_group_when_its_instances_have_gone(
    kafka: Wire,
    admin: AdminClient,
    start: Callable[..., GroupReader],
    fill: Callable[[int], None],
    headrace_clock: MovableClock,
) -> None:
    fill(10)
    reader = start("alpha")
    reader.get()
    reader.get()
    reset = [ConsumerGroupTopicPartitions(GROUP, [TopicPartition(NAME, number, 2) for number in range(2)])]
    refused = admin.alter_consumer_group_offsets(reset)[GROUP].result()
    assert {each.error.code() for each in refused.topic_partitions} == {Code.UNKNOWN_MEMBER_ID}
    assert [commit(kafka, GROUP, {(NAME, number): 2}) for number in range(2)] == [[Code.UNKNOWN_MEMBER_ID]] * 2
    headrace_clock.advance(seconds=31)
    admin.alter_consumer_group_offsets(reset)[GROUP].result()
    assert positions(kafka) == [2, 2]

    assert [int(message.offset) for message in start("alpha").get()] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_group_with_instances_is_not_deleted(
    kafka: Wire, start: Callable[..., GroupReader], headrace_clock: MovableClock
) -> None:
    reader = start("alpha")
    reader.get()

    def delete() -> int:
        [result] = kafka.ask(DeleteGroupsRequest(groups_names=[GROUP]), 2).results
        return int(result.error_code)

    assert delete() == Code.NON_EMPTY_GROUP
    headrace_clock.advance(seconds=31)
    assert delete() == 0
    assert delete() == Code.GROUP_ID_NOT_FOUND
    assert committed(kafka, GROUP, NAME)[0] == -1
    assert status(reader.get)[0] in {400, 404}


def test_a_commit_of_a_member_of_kafka_s_is_unknown_among_instances(
    kafka: Wire, start: Callable[..., GroupReader]
) -> None:
    start("alpha").get()
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=NAME,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=1, committed_metadata=""
                )
            ],
        )
    ]
    request = OffsetCommitRequest(
        group_id=GROUP, generation_id_or_member_epoch=1, member_id=f"{NAME}/alpha", topics=topics
    )
    answer = kafka.ask(request, 8)
    assert [one.error_code for topic in answer.topics for one in topic.partitions] == [Code.UNKNOWN_MEMBER_ID]
    assert positions(kafka) == [0, 0]
