"""Group requests are dropped once their client has received a timeout error."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.groups.effects import Result, refusal
from headrace.groups.errors import GroupError
from headrace.groups.events import Request
from headrace.kafka.apis import heartbeat, join_group, leave_group, sync_group
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=9_000,
    rebalance_timeout_ms=9_000,
    member_id="m",
    protocol_type="consumer",
    protocols=[],
)
SYNC = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
LEAVE = LeaveGroupRequest(group_id="g", members=[LeaveGroupRequest.MemberIdentity(member_id="m")])
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class Groups:
    """Of which one is just loaded: what is asked for since comes first."""

    def __init__(self) -> None:
        self.given_up: list[bool] = []

    def new_member_id(self, client_id: str) -> str:
        return f"{client_id}-1"

    async def request(self, _: str, event: Request, given_up: Callable[[], bool]) -> Result:
        self.given_up.append(given_up())
        return refusal(event, GroupError.COORDINATOR_NOT_AVAILABLE)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize(
    ("handle", "asked", "version"),
    [
        (join_group.handle, JOIN, 9),
        (sync_group.handle, SYNC, 5),
        (leave_group.handle, LEAVE, 5),
        (heartbeat.handle, HEARTBEAT, 4),
    ],
)
def test_a_group_can_check_whether_a_request_was_given_up(handle: Any, asked: Any, version: int, done: bool) -> None:
    groups = Groups()
    channel: Any = SimpleNamespace(broker=SimpleNamespace(groups=groups), client_host="127.0.0.1")
    asyncio.run(handle(asked, RequestContext(channel, asked.API_KEY, version, 1, "c", 10, done=done)))
    assert groups.given_up == [done]
