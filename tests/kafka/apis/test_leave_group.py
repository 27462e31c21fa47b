"""LeaveGroup on the wire, in every version."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import join, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DescribeGroupsRequest,
    LeaveGroupRequest,
)


@pytest.mark.parametrize("version", range(6))
def test_leaving_by_version(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic)
    sync(wire, topic, joined)
    member = LeaveGroupRequest.MemberIdentity(member_id=joined.member_id)
    nobody = LeaveGroupRequest.MemberIdentity(member_id="nobody")
    request = LeaveGroupRequest(group_id=topic, member_id=joined.member_id, members=[member, nobody])
    answer = wire.ask(request, version)
    assert answer.error_code == 0
    if version >= 3:
        assert [one.error_code for one in answer.members] == [0, Code.UNKNOWN_MEMBER_ID]
    [found] = wire.ask(DescribeGroupsRequest(groups=[topic]), 5).groups
    assert (found.group_state, found.members) == ("Empty", [])
