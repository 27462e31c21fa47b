"""Heartbeat on the wire: members of another generation or name are fenced, as in every other request of a member."""

from tests.harness.wire import Wire
from tests.kafka.group_requests import join, join_request, sync

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    HeartbeatRequest,
)


def test_fencing(wire: Wire, topic: str) -> None:
    joined = join(wire, topic)
    sync(wire, topic, joined)

    def beat(generation: int, member: str) -> int:
        request = HeartbeatRequest(group_id=topic, generation_id=generation, member_id=member)
        code: int = wire.ask(request, 4).error_code
        return code

    assert beat(joined.generation_id, joined.member_id) == 0
    assert beat(joined.generation_id + 1, joined.member_id) == Code.ILLEGAL_GENERATION
    assert beat(joined.generation_id, "nobody") == Code.UNKNOWN_MEMBER_ID
    assert wire.ask(join_request(topic, "nobody"), 7).error_code == Code.UNKNOWN_MEMBER_ID
    assert wire.ask(join_request(f"{topic}-unknown", "nobody"), 7).error_code == Code.UNKNOWN_MEMBER_ID
    inconsistent = wire.ask(join_request(topic, protocol="other"), 3)
    assert inconsistent.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
