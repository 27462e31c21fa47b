"""LeaveGroup (13), versions 0-5.

Version notes
- 0-2: one member, one error. 3: many members, static ones by instance id only (KIP-345). 4: flexible. 5: reasons.
"""

from headrace.groups.effects import LeaveResult
from headrace.groups.events import Leave, Leaving
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import groups, its_group
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from headrace.security.access.required_acls import Operation


@register(LeaveGroupRequest, 0, 5, needs=(groups(Operation.READ, its_group),), bound=OF_CHANGES)
async def handle(request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """Remove members from a group."""
    if context.version < 3:
        leaving: tuple[Leaving, ...] = (Leaving(member_id=request.member_id),)
    else:
        leaving = tuple(
            Leaving(member_id=member.member_id, instance_id=member.group_instance_id, reason=member.reason)
            for member in request.members
        )
    result = await context.ask_group(request.group_id, Leave(token=context, members=leaving))
    assert isinstance(result, LeaveResult)
    if context.version < 3:
        error = result.error or (result.members[0].error if result.members else None)
        return LeaveGroupResponse(error_code=code_of(error))
    return LeaveGroupResponse(
        error_code=code_of(result.error),
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=member.member_id, group_instance_id=member.instance_id, error_code=code_of(member.error)
            )
            for member in result.members
        ],
    )
