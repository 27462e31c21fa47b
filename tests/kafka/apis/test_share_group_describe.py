"""ShareGroupDescribe on the wire."""

from tests.harness.guarded import ROOT, guarded
from tests.harness.wire import Wire
from tests.kafka.group_requests import commit
from tests.kafka.sharer import Sharer

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.security.access.acls import Acl
from headrace.security.access.required_acls import Operation, ResourceType


def test_members_with_their_assignments(wire: Wire, topic: str) -> None:
    topic_id = wire.topic_id(wire.create(topic, 2))
    member = Sharer(wire, topic, topic)
    member.beat()
    request = m.ShareGroupDescribeRequest(group_ids=[topic, "nowhere"], include_authorized_operations=True)
    group, nothing = wire.ask(request, 1).groups
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        1,
        1,
        "simple",
    )
    (only,) = group.members
    assert (only.member_id, only.member_epoch, only.subscribed_topic_names) == (member.member, 1, [topic])
    assert only.client_host == "/127.0.0.1"
    assert [(each.topic_id, each.topic_name, each.partitions) for each in only.assignment.topic_partitions] == [
        (topic_id, topic, [0, 1])
    ]
    assert group.authorized_operations > 0
    assert (nothing.error_code, nothing.error_message) == (Code.GROUP_ID_NOT_FOUND, "Group nowhere not found.")
    member.beat(epoch=-1)
    (empty,) = wire.ask(m.ShareGroupDescribeRequest(group_ids=[topic]), 1).groups
    assert (empty.group_state, empty.members) == ("Empty", [])


def test_groups_of_other_kinds(wire: Wire, topic: str) -> None:
    commit(wire, topic, {(wire.create(topic), 0): 1})
    (group,) = wire.ask(m.ShareGroupDescribeRequest(group_ids=[topic]), 1).groups
    assert (group.error_code, group.error_message) == (
        Code.GROUP_ID_NOT_FOUND,
        f"Group {topic} is not a share group.",
    )


def test_a_topic_that_may_not_be_described_hides_the_group() -> None:
    with guarded() as server, server.connect(ROOT) as root, server.connect("jane") as jane:
        root.create("secret")
        Sharer(root, "readers", "secret").beat()
        rule = Acl(
            type=ResourceType.GROUP, name="readers", principal="User:jane", operation=Operation.DESCRIBE, allow=True
        )
        server.allow(rule)
        (group,) = jane.ask(m.ShareGroupDescribeRequest(group_ids=["readers"]), 1).groups
        assert (group.error_code, group.members) == (Code.TOPIC_AUTHORIZATION_FAILED, [])
        (other,) = jane.ask(m.ShareGroupDescribeRequest(group_ids=["others"]), 1).groups
        assert other.error_code == Code.GROUP_AUTHORIZATION_FAILED
