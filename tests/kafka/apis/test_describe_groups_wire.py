"""DescribeGroups on the wire, in every version."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import join, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    DescribeGroupsRequest,
)


@pytest.mark.parametrize("version", range(7))
def test_describing_by_version(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic, instance="one")
    sync(wire, topic, joined, {joined.member_id: b"mine"})
    found, unknown = wire.ask(DescribeGroupsRequest(groups=[topic, f"{topic}-unknown"]), version).groups
    assert (found.error_code, found.group_state, found.protocol_type) == (0, "Stable", "consumer")
    [member] = found.members
    assert (member.member_id, member.member_assignment, member.member_metadata) == (joined.member_id, b"mine", b"m")
    assert member.client_id == "raw"
    assert unknown.group_state == "Dead"
    assert unknown.error_code == (0 if version < 6 else Code.GROUP_ID_NOT_FOUND)
    assert unknown.members == []
