"""Every request can be refused as a whole, in its own form."""

import pytest

from headrace.groups.effects import (
    CommitResult,
    DeleteGroupResult,
    DeleteOffsetsResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    Result,
    SyncResult,
    refusal,
)
from headrace.groups.errors import GroupError, InstanceProblem
from headrace.groups.events import Commit, DeleteGroup, DeleteOffsets, Heartbeat, Join, Leave, Request, Sync
from headrace.groups.instances.events import InstanceRefused, TopicFacts, Update
from headrace.groups.model import OffsetAndMetadata, TopicPartition

ERROR = GroupError.COORDINATOR_NOT_AVAILABLE
PARTITION = TopicPartition("t", 0)
JOIN = Join(
    token=1,
    member_id="m",
    instance_id=None,
    client_id="",
    client_host="",
    session_timeout_ms=1,
    rebalance_timeout_ms=1,
    protocol_type="consumer",
    protocols=(),
    new_member_id="n",
    member_id_required=True,
    skip_assignment_supported=True,
)
SYNC = Sync(token=1, generation=1, member_id="m", instance_id=None, protocol_type=None, protocol=None, assignments={})
COMMIT = Commit(
    token=1, generation=1, member_id="m", instance_id=None, positions={PARTITION: OffsetAndMetadata(offset=1)}
)


@pytest.mark.parametrize(
    ("request_", "result"),
    [
        (JOIN, JoinResult(error=ERROR, member_id="m")),
        (SYNC, SyncResult(error=ERROR)),
        (Heartbeat(token=1, generation=1, member_id="m", instance_id=None), HeartbeatResult(error=ERROR)),
        (Leave(token=1, members=()), LeaveResult(error=ERROR)),
        (COMMIT, CommitResult(error=ERROR, partitions={PARTITION: ERROR})),
        (DeleteGroup(1), DeleteGroupResult(error=ERROR)),
        (DeleteOffsets(1, (PARTITION,)), DeleteOffsetsResult(error=ERROR, partitions={PARTITION: ERROR})),
    ],
)
def test_a_refusal_has_the_form_of_the_answer(request_: Request, result: Result) -> None:
    assert refusal(request_, ERROR) == result


def test_an_instance_gets_a_retriable_error() -> None:
    result = refusal(Update(token=1, topic=TopicFacts("t", 1, 1), starts=()), ERROR)
    assert isinstance(result, InstanceRefused)
    assert result.kind is InstanceProblem.UNAVAILABLE
