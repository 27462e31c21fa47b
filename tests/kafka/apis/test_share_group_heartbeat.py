"""ShareGroupHeartbeat on the wire (reference: Apache Kafka 4.3.1, whose responses were recorded)."""

from typing import Any
from uuid import UUID

import pytest
from tests.harness.guarded import ROOT, guarded
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit, join_request
from tests.kafka.sharer import Sharer, described, parts

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.security.access.acls import Acl
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.model import CONSUMER_OFFSETS


def assigned(answer: Any) -> dict[UUID, list[int]] | None:
    assert answer.error_code == 0, answer
    if answer.assignment is None:
        return None
    return {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}


def test_life_of_a_member(wire: Wire, other: Wire, topic: str) -> None:
    topic_id = wire.topic_id(wire.create(topic, 4))
    first, second = Sharer(wire, topic, topic), Sharer(other, topic, topic)
    joined = first.beat()
    assert (joined.member_id, joined.member_epoch) == (first.member, 1)
    assert assigned(joined) == {topic_id: [0, 1, 2, 3]}, "the first response has the assignment"
    assert 300 <= joined.heartbeat_interval_ms <= 5_000
    assert assigned(first.beat()) is None
    theirs = assigned(second.beat())
    mine = assigned(first.beat())
    assert mine is not None
    assert theirs is not None
    assert sorted(mine[topic_id] + theirs[topic_id]) == [0, 1, 2, 3]
    assert first.beat(epoch=7).error_code == Code.FENCED_MEMBER_EPOCH
    left = first.beat(epoch=-1)
    assert (left.member_epoch, left.heartbeat_interval_ms) == (-1, 0)
    assert first.beat(epoch=-1).error_code == Code.UNKNOWN_MEMBER_ID
    assert assigned(second.beat()) == {topic_id: [0, 1, 2, 3]}


def test_invalid_requests(wire: Wire, topic: str) -> None:
    wire.create(topic)
    member = Sharer(wire, topic, topic)
    assert member.beat(epoch=1).error_code == Code.GROUP_ID_NOT_FOUND
    answer = member.beat(epoch=0)
    assert answer.error_code == Code.INVALID_REQUEST
    assert answer.error_message == "SubscribedTopicNames must be set in first request."
    assert Sharer(wire, "", topic).beat().error_code == Code.INVALID_REQUEST
    assert member.beat(epoch=0, topics=[topic]).error_code == 0


def test_topics_that_come_later(wire: Wire, topic: str) -> None:
    known = wire.create(topic, 1)
    member = Sharer(wire, topic, known)
    later = f"{topic}-later"
    assert assigned(member.beat(epoch=0, topics=[topic, later])) == {member.topic_id: [0]}
    later_id = wire.topic_id(wire.create(later, 2))
    assert assigned(member.beat()) == {member.topic_id: [0], later_id: [0, 1]}
    wire.delete(later)
    assert assigned(member.beat()) == {member.topic_id: [0]}


def test_kinds_of_groups_do_not_mix(wire: Wire, topic: str) -> None:
    wire.create(topic)
    member = Sharer(wire, topic, topic)
    member.beat()
    member.beat(epoch=-1)
    assert wire.ask(join_request(topic), 9).error_code == Code.INCONSISTENT_GROUP_PROTOCOL
    heartbeat = m.ConsumerGroupHeartbeatRequest(
        group_id=topic,
        member_id="A",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    answer = wire.ask(heartbeat, 1)
    assert answer.error_code == Code.GROUP_ID_NOT_FOUND
    assert answer.error_message == f"Group {topic} is not a consumer group."
    classic = f"{topic}-classic"
    commit(wire, classic, {(topic, 0): 1})
    refused = Sharer(wire, classic, topic).beat()
    assert (refused.error_code, refused.error_message) == (
        Code.GROUP_ID_NOT_FOUND,
        f"Group {classic} is not a share group.",
    )


def test_lists_and_deletion(wire: Wire, topic: str) -> None:
    wire.create(topic)
    member = Sharer(wire, topic, topic)
    member.beat()
    listed = wire.ask(m.ListGroupsRequest(types_filter=["share"]), 5)
    assert [
        (each.group_type, each.protocol_type, each.group_state) for each in listed.groups if each.group_id == topic
    ] == [("share", "share", "Stable")]
    described = wire.ask(m.DescribeGroupsRequest(groups=[topic]), 6).groups[0]
    assert described.error_code == Code.GROUP_ID_NOT_FOUND

    def delete() -> int:
        return int(wire.ask(m.DeleteGroupsRequest(groups_names=[topic]), 2).results[0].error_code)

    assert delete() == Code.NON_EMPTY_GROUP
    member.beat(epoch=-1)
    assert delete() == 0
    assert delete() == Code.GROUP_ID_NOT_FOUND


def test_a_topic_that_may_not_be_described_refuses_the_request() -> None:
    with guarded() as server, server.connect(ROOT) as root, server.connect("jane") as jane:
        for name in ("mine", "secret"):
            root.create(name)
        server.allow(
            *(
                Acl(type=kind, name=name, principal="User:jane", operation=operation, allow=True)
                for kind, name, operation in (
                    (ResourceType.GROUP, "readers", Operation.READ),
                    (ResourceType.TOPIC, "mine", Operation.DESCRIBE),
                )
            )
        )
        member = Sharer(jane, "readers", "mine")
        assert member.beat(epoch=0, topics=["mine", "secret"]).error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert member.beat().error_code == 0
        assert Sharer(jane, "others", "mine").beat().error_code == Code.GROUP_AUTHORIZATION_FAILED


def test_an_internal_topic_gives_no_records_and_stops_no_others(wire: Wire, topic: str) -> None:
    topic_id = wire.topic_id(wire.create(topic))
    member = Sharer(wire, topic, CONSUMER_OFFSETS)
    found = assigned(member.beat(0, [CONSUMER_OFFSETS, topic]))
    assert found is not None
    assert found[topic_id] == [0]
    fetched = member.fetch(0)
    assert parts(fetched)[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    ((start, *_),) = described(wire, topic, (CONSUMER_OFFSETS, [0])).values()
    assert start == -1
    member.beat(-1)
    assert wire.ask(m.DeleteGroupsRequest(groups_names=[topic]), 2).results[0].error_code == 0


@pytest.mark.parametrize("version", [1])
def test_the_feature_is_advertised(wire: Wire, version: int) -> None:
    answer = wire.ask(m.ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    assert levels["share.version"] == version
