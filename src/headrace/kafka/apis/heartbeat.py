"""Heartbeat (12), versions 0-4.

Version notes
- 3: static members. 4: flexible.
"""

from headrace.groups.effects import HeartbeatResult
from headrace.groups.events import Heartbeat
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import groups, its_group
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_MEMBERS
from headrace.protocol.messages import HeartbeatRequest, HeartbeatResponse
from headrace.security.access.required_acls import Operation


@register(HeartbeatRequest, 0, 4, needs=(groups(Operation.READ, its_group),), bound=OF_MEMBERS, urgent=True)
async def handle(request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    """Record the heartbeat of a member."""
    result = await context.ask_group(
        request.group_id,
        Heartbeat(
            token=context,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
        ),
    )
    assert isinstance(result, HeartbeatResult)
    return HeartbeatResponse(error_code=code_of(result.error))
