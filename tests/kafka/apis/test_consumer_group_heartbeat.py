"""ConsumerGroupHeartbeat on the wire (reference: Apache Kafka 4.3.1, whose responses were recorded)."""

import time
from typing import Any
from uuid import UUID

import pytest
from tests.harness.guarded import ROOT, Guarded, guarded
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, join, join_request

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    IncrementalAlterConfigsRequest,
    ListGroupsRequest,
    OffsetFetchRequest,
)
from headrace.security.access.acls import Acl, Pattern
from headrace.security.access.required_acls import Operation, ResourceType

Request = ConsumerGroupHeartbeatRequest
JOINING: dict[str, Any] = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}


def beat(wire: Wire, group: str, member: str, epoch: int, *, version: int = 1, **fields: Any) -> Any:
    return wire.ask(Request(group_id=group, member_id=member, member_epoch=epoch, **fields), version)


def joined(wire: Wire, group: str, member: str, *topics: str, **fields: Any) -> Any:
    answer = beat(wire, group, member, 0, subscribed_topic_names=list(topics), **JOINING, **fields)
    assert answer.error_code == 0, answer
    return answer


def assigned(answer: Any) -> dict[UUID, list[int]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def owned(topic_id: UUID, *partitions: int) -> list[Request.TopicPartitions]:
    return [Request.TopicPartitions(topic_id=topic_id, partitions=list(partitions))]


def settled(wire: Wire, group: str, member: str, epoch: int) -> tuple[int, dict[UUID, list[int]]]:
    """The epoch and the assignment of a member once one comes that is not empty."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        answer = beat(wire, group, member, epoch)
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        if found := assigned(answer):
            return epoch, found
        time.sleep(0.02)
    raise AssertionError("no assignment")


def test_two_members_share_a_topic(wire: Wire, other: Wire, topic: str) -> None:
    topic_id = wire.topic_id(wire.create(topic, 4))
    first = joined(wire, topic, "A", topic)
    assert (first.member_id, assigned(first)) == ("A", {topic_id: [0, 1, 2, 3]})
    assert 300 <= first.heartbeat_interval_ms <= 5_000
    again = beat(wire, topic, "A", first.member_epoch, topic_partitions=owned(topic_id, 0, 1, 2, 3))
    assert (again.error_code, again.member_epoch, again.assignment) == (0, first.member_epoch, None)
    second = joined(other, topic, "B", topic)
    assert (assigned(second), second.heartbeat_interval_ms) == ({}, 100), "nothing is free yet"
    less = beat(wire, topic, "A", first.member_epoch)
    assert less.member_epoch == first.member_epoch, "the old epoch until it has given up"
    assert assigned(less) == {topic_id: [0, 1]}
    assert assigned(beat(other, topic, "B", second.member_epoch)) is None
    done = beat(wire, topic, "A", first.member_epoch, topic_partitions=owned(topic_id, 0, 1))
    assert (done.member_epoch, done.assignment) == (second.member_epoch, None)
    assert assigned(beat(other, topic, "B", second.member_epoch)) == {topic_id: [2, 3]}
    for client, member in ((wire, "A"), (other, "B")):
        left = beat(client, topic, member, -1)
        assert (left.error_code, left.member_epoch, left.heartbeat_interval_ms) == (0, -1, 0)
    assert beat(wire, topic, "A", -1).error_code in {Code.UNKNOWN_MEMBER_ID, Code.GROUP_ID_NOT_FOUND}


def test_the_server_makes_member_ids_for_version_0_only(wire: Wire, topic: str) -> None:
    wire.create(topic)
    names: dict[str, Any] = {"subscribed_topic_names": [topic]}
    old = beat(wire, topic, "", 0, version=0, **names, **JOINING)
    assert (old.error_code, len(old.member_id)) == (0, 36)
    new = beat(wire, topic, "", 0, **names, **JOINING)
    assert (new.error_code, new.error_message) == (Code.INVALID_REQUEST, "MemberId can't be empty.")


def test_topics_of_a_pattern_come_with_a_later_response(wire: Wire, topic: str) -> None:
    named, matched = wire.create(f"{topic}-named"), wire.create(f"{topic}-a1")
    first = joined(wire, topic, "A", named, subscribed_topic_regex=f"{topic}-a.*")
    assert assigned(first) == {wire.topic_id(named): [0]}
    epoch, found = settled(wire, topic, "A", first.member_epoch)
    assert found == {wire.topic_id(named): [0], wire.topic_id(matched): [0]}
    later = wire.create(f"{topic}-a2")
    _, found = settled(wire, topic, "A", epoch)
    assert set(found) == {wire.topic_id(each) for each in (named, matched, later)}


def test_an_empty_pattern_is_none(wire: Wire, topic: str) -> None:
    """As librdkafka sends it."""
    wire.create(topic)
    first = joined(wire, topic, "A", topic, subscribed_topic_regex="")
    assert assigned(first) == {wire.topic_id(topic): [0]}
    assert first.heartbeat_interval_ms >= 300


@pytest.mark.parametrize("pattern", ["(", "x" * 1_025])
def test_an_invalid_pattern(wire: Wire, topic: str, pattern: str) -> None:
    answer = beat(wire, topic, "A", 0, subscribed_topic_regex=pattern, **JOINING)
    assert answer.error_code == Code.INVALID_REGULAR_EXPRESSION
    assert "not a valid regular expression" in answer.error_message
    assert topic not in [each.group_id for each in wire.ask(ListGroupsRequest(), 5).groups]


def test_topics_that_grow_disappear_and_return(wire: Wire, topic: str) -> None:
    first = joined(wire, topic, "A", topic)
    assert assigned(first) == {}, "a missing topic is no error"
    wire.create(topic)
    before = wire.topic_id(topic)
    epoch, found = settled(wire, topic, "A", first.member_epoch)
    assert found == {before: [0]}
    wire.delete(topic)
    deadline = time.monotonic() + 20
    while (answer := beat(wire, topic, "A", epoch)).assignment is None:
        assert time.monotonic() < deadline
    assert assigned(answer) == {}
    epoch = beat(wire, topic, "A", answer.member_epoch, topic_partitions=[]).member_epoch
    wire.create(topic, 2)
    after = wire.topic_id(topic)
    assert after != before
    assert settled(wire, topic, "A", epoch)[1] == {after: [0, 1]}


def test_commits_and_fetches_of_members(wire: Wire, topic: str) -> None:
    wire.create(topic)
    epoch = joined(wire, topic, "A", topic).member_epoch
    place = {(topic, 0): 3}
    for version in (9, 10):
        assert commit(wire, topic, place, member="A", generation=epoch, version=version) == [0]
        assert commit(wire, topic, place, member="A", generation=epoch + 1, version=version) == [
            Code.STALE_MEMBER_EPOCH
        ]
        assert commit(wire, topic, place, member="B", generation=epoch, version=version) == [Code.UNKNOWN_MEMBER_ID]
        assert commit(wire, topic, place, version=version) == [Code.UNKNOWN_MEMBER_ID]
    assert commit(wire, topic, place, member="A", generation=epoch, version=8) == [Code.UNSUPPORTED_VERSION]

    def fetched(member: str | None, at: int, group: str = topic) -> tuple[int, list[int]]:
        asked = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
        groups = [
            OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group, member_id=member, member_epoch=at, topics=[asked]
            )
        ]
        [found] = wire.ask(OffsetFetchRequest(groups=groups), 9).groups
        return found.error_code, [one.committed_offset for each in found.topics for one in each.partitions]

    assert fetched("A", epoch) == fetched(None, -1) == (0, [3])
    assert fetched("A", epoch - 1) == fetched("A", epoch + 1) == (Code.STALE_MEMBER_EPOCH, [])
    assert fetched("B", epoch) == (Code.UNKNOWN_MEMBER_ID, [])
    assert fetched("A", epoch, f"{topic}-none") == (0, [-1])


def test_kinds_exclude_each_other_while_they_have_members(wire: Wire, topic: str) -> None:
    wire.create(topic)
    classic, consumer = f"{topic}-classic", f"{topic}-consumer"
    epoch = joined(wire, consumer, "A", topic).member_epoch
    assert wire.ask(join_request(consumer), 9).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    beat(wire, consumer, "A", -1)
    assert join(wire, consumer).generation_id > epoch, "an empty group changes its kind, and its epochs continue"
    commit(wire, classic, {(topic, 0): 1})
    assert joined(wire, classic, "A", topic).member_epoch > 0
    found = wire.ask(ListGroupsRequest(types_filter=["consumer"]), 5).groups
    kinds = {each.group_id: each.group_type for each in found}
    assert kinds[classic] == "consumer"
    assert consumer not in kinds


def rule(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(
        principal="User:jane", host="*", operation=operation, allow=True, type=kind, name=name, pattern=Pattern.LITERAL
    )


@pytest.fixture(scope="module")
def server() -> Any:
    with guarded() as started:
        started.allow(
            rule(Operation.READ, ResourceType.GROUP, "readers"),
            rule(Operation.DESCRIBE, ResourceType.TOPIC, "mine"),
            rule(Operation.DESCRIBE, ResourceType.TOPIC, "mine-too"),
        )
        with started.connect(ROOT) as root:
            for name in ("mine", "mine-too", "my-other"):
                root.create(name)
        yield started


def test_one_named_topic_that_may_not_be_described_refuses_the_request(server: Guarded) -> None:
    with server.connect("jane") as jane:
        for names in (["mine", "my-other"], ["mine", "nowhere"]):
            answer = beat(jane, "readers", "A", 0, subscribed_topic_names=names, **JOINING)
            assert (answer.error_code, answer.member_id) == (Code.TOPIC_AUTHORIZATION_FAILED, None)
        answer = beat(jane, "others", "A", 0, subscribed_topic_names=["mine"], **JOINING)
        assert answer.error_code == Code.GROUP_AUTHORIZATION_FAILED
        assert joined(jane, "readers", "A", "mine").error_code == 0
        beat(jane, "readers", "A", -1)


def test_a_pattern_has_only_topics_that_may_be_described(server: Guarded) -> None:
    with server.connect("jane") as jane:
        answer = beat(jane, "readers", "A", 0, subscribed_topic_regex="m.*", **JOINING)
        assert assigned(answer) == {}
        _, found = settled(jane, "readers", "A", answer.member_epoch)
        topics = server.clusters.default.topics
        assert set(found) == {topics.get(name).topic.id for name in ("mine", "mine-too")}
        beat(jane, "readers", "A", -1)


def test_the_configuration_of_a_group_applies_at_once(wire: Wire, topic: str) -> None:
    wire.create(topic)
    epoch = joined(wire, topic, "A", topic).member_epoch
    assert beat(wire, topic, "A", epoch).heartbeat_interval_ms < 5_000
    config = IncrementalAlterConfigsRequest.AlterableConfig(
        name="consumer.heartbeat.interval.ms", config_operation=0, value="7000"
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=32, resource_name=topic, configs=[config]
    )
    [changed] = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert changed.error_code == 0
    assert beat(wire, topic, "A", epoch).heartbeat_interval_ms == 7_000
