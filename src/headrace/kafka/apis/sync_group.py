"""SyncGroup (14), versions 0-5.

Behavior
- The leader sends all assignments, and the other members wait for theirs. They are stored before the responses.

Version notes
- 3: static members. 4: flexible. 5: protocol type and name are checked and returned (KIP-559).
"""

from headrace.groups.effects import SyncResult
from headrace.groups.events import Sync
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import groups, its_group
from headrace.kafka.server.registry import WaitsFor, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_MEMBERS
from headrace.protocol.messages import SyncGroupRequest, SyncGroupResponse
from headrace.security.access.required_acls import Operation


@register(
    SyncGroupRequest,
    0,
    5,
    needs=(groups(Operation.READ, its_group),),
    bound=OF_MEMBERS,
    waits_for=WaitsFor.MEMBERS,
)
async def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Exchange assignments."""
    result = await context.ask_group(
        request.group_id,
        Sync(
            token=context,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={given.member_id: given.assignment for given in request.assignments},
        ),
    )
    assert isinstance(result, SyncResult)
    return SyncGroupResponse(
        error_code=code_of(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
