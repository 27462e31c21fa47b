"""SyncGroup on the wire. The rules of groups: tests/groups."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.group_requests import join, join_request, sync

from headrace.protocol.messages import (
    SyncGroupRequest,
)


@pytest.mark.parametrize("version", range(6))
def test_a_member_without_an_assignment_gets_empty_bytes(wire: Wire, topic: str, version: int) -> None:
    joined = join(wire, topic)
    answer = sync(wire, topic, joined, version=version)
    assert (answer.error_code, answer.assignment) == (0, b"")


def test_syncs_wait_for_the_leader(wire: Wire, other: Wire, topic: str) -> None:
    wire.send(join_request(topic), 3)
    other.send(join_request(topic), 3)
    mine, theirs = wire.receive(), other.receive()
    (leader, first), (follower, second) = (
        [(wire, mine), (other, theirs)] if mine.members else [(other, theirs), (wire, mine)]
    )
    follower.send(SyncGroupRequest(group_id=topic, generation_id=1, member_id=second.member_id, assignments=[]), 3)
    assert follower.is_silent(0.05)
    shares = {first.member_id: b"for the leader", second.member_id: b"for the other"}
    assert sync(leader, topic, first, shares, version=3).assignment == b"for the leader"
    assert follower.receive().assignment == b"for the other"
