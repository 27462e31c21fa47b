from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.effects import refusal
from headrace.groups.errors import GroupError


def test_a_heartbeat_that_says_nothing_leaves_everything_as_it_was() -> None:
    event = ConsumerHeartbeat(token=1, member_id="m", member_epoch=5)
    assert (event.topics, event.pattern, event.owned, event.server_assignor) == (None, None, None, None)
    assert event.rebalance_timeout_ms == -1


def test_a_refused_heartbeat_has_the_reason() -> None:
    event = ConsumerHeartbeat(token=1, member_id="m", member_epoch=5)
    result = refusal(event, GroupError.FENCED_MEMBER_EPOCH, "why")
    assert result == ConsumerHeartbeatResult(error=GroupError.FENCED_MEMBER_EPOCH, message="why", member_id="m")
