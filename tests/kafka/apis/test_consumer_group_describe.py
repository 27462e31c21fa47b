"""ConsumerGroupDescribe, and what older APIs say of consumer groups."""

from typing import Any

import pytest
from tests.harness.guarded import ROOT, guarded
from tests.harness.wire import Wire
from tests.kafka.apis.test_consumer_group_heartbeat import beat, joined
from tests.kafka.group_requests import join, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from headrace.security.access.acls import Acl, Pattern
from headrace.security.access.required_acls import Operation, ResourceType


def described(wire: Wire, *groups: str, version: int = 1, **fields: Any) -> list[Any]:
    found: list[Any] = wire.ask(ConsumerGroupDescribeRequest(group_ids=list(groups), **fields), version).groups
    return found


@pytest.mark.parametrize("version", range(2))
def test_a_group_with_its_members(wire: Wire, topic: str, version: int) -> None:
    wire.create(topic, 2)
    epoch = joined(
        wire, topic, "A", topic, instance_id="one", rack_id="r1", server_assignor="range", subscribed_topic_regex="no"
    ).member_epoch
    [group] = described(wire, topic, topic, version=version, include_authorized_operations=True)
    assert (group.error_code, group.group_id, group.group_state) == (0, topic, group.group_state)
    assert group.group_state in {"Stable", "Assigning", "Reconciling"}
    assert group.group_epoch >= group.assignment_epoch >= epoch
    assert (group.assignor_name, group.authorized_operations != -(2**31)) == ("range", True)
    [member] = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("A", "one", "r1", epoch)
    assert (member.client_id, member.client_host) == ("raw", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ([topic], "no")
    for assignment in (member.assignment, member.target_assignment):
        [part] = assignment.topic_partitions
        assert (part.topic_id, part.topic_name, part.partitions) == (wire.topic_id(topic), topic, [0, 1])
    assert member.member_type == (1 if version else -1)


def test_other_groups_are_not_found(wire: Wire, topic: str) -> None:
    classic = join(wire, topic)
    sync(wire, topic, classic, {classic.member_id: b""})
    found, missing = described(wire, topic, f"{topic}-none")
    assert (found.error_code, missing.error_code) == (Code.GROUP_ID_NOT_FOUND, Code.GROUP_ID_NOT_FOUND)
    assert found.error_message == f"Group {topic} is not a consumer group."
    assert missing.error_message == f"Group {topic}-none not found."


def test_describe_groups_has_only_classic_ones(wire: Wire, topic: str) -> None:
    wire.create(topic)
    joined(wire, topic, "A", topic)
    for version in range(7):
        one, missing = wire.ask(DescribeGroupsRequest(groups=[topic, f"{topic}-none"]), version).groups
        assert (one.group_state, one.members, missing.group_state) == ("Dead", [], "Dead")
        assert {one.error_code, missing.error_code} == {0 if version < 6 else Code.GROUP_ID_NOT_FOUND}
    assert one.error_message == f"Group {topic} is not a classic group."


def test_a_group_is_listed_and_deleted(wire: Wire, topic: str) -> None:
    wire.create(topic)
    joined(wire, topic, "A", topic)

    def listed(**filters: Any) -> list[Any]:
        answer = wire.ask(ListGroupsRequest(**filters), 5)
        return [(each.group_state, each.group_type, each.protocol_type) for each in answer.groups
                if each.group_id == topic]  # fmt: skip

    assert listed() == listed(types_filter=["Consumer"]) == [("Stable", "consumer", "consumer")]
    assert listed(types_filter=["classic"]) == listed(states_filter=["Empty"]) == []
    [refused] = wire.ask(DeleteGroupsRequest(groups_names=[topic]), 2).results
    assert refused.error_code == Code.NON_EMPTY_GROUP
    beat(wire, topic, "A", -1)
    assert listed() == [("Empty", "consumer", "consumer")]
    [group] = described(wire, topic)
    assert (group.group_state, group.members) == ("Empty", [])
    [deleted] = wire.ask(DeleteGroupsRequest(groups_names=[topic]), 2).results
    assert (deleted.error_code, listed()) == (0, [])


def test_a_group_of_hidden_topics_is_refused() -> None:
    with guarded() as server:
        server.allow(
            Acl(
                principal="User:jane",
                host="*",
                operation=Operation.DESCRIBE,
                allow=True,
                type=ResourceType.GROUP,
                name="g",
                pattern=Pattern.PREFIXED,
            )
        )
        with server.connect(ROOT) as root, server.connect("jane") as jane:
            root.create("hidden")
            joined(root, "g1", "A", "hidden")
            joined(root, "g2", "A", "nowhere")
            hidden, shown, refused = described(jane, "g1", "g2", "others")
            assert (hidden.error_code, hidden.members) == (Code.TOPIC_AUTHORIZATION_FAILED, [])
            assert (shown.error_code, len(shown.members)) == (0, 1)
            assert refused.error_code == Code.GROUP_AUTHORIZATION_FAILED
