"""JoinGroup (11), versions 0-9.

Behavior
- The response waits for the end of the join phase (`headrace.groups`).

Version notes
- 1: rebalance timeout. Before, the session timeout applies. 4: a new member first gets its member id (KIP-394).
- 5: static members (KIP-345). 6: flexible. 7: protocol type in the response. 8: reason. 9: skip assignment (KIP-814).
"""

from headrace.groups.effects import JoinResult
from headrace.groups.events import Join
from headrace.kafka.denied import No, whole
from headrace.kafka.errors import code_of
from headrace.kafka.required_acls import groups, its_group
from headrace.kafka.server.registry import WaitsFor, register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_MEMBERS
from headrace.protocol.messages import JoinGroupRequest, JoinGroupResponse
from headrace.security.access.required_acls import Operation

_MOST_CLIENT_ID = 249
"""Maximum stored characters of a client id, the same as of a topic's name."""


def _no(request: JoinGroupRequest, context: RequestContext, no: No) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=no.code,
        generation_id=-1,
        protocol_name=None if context.version >= 7 else "",
        leader="",
        member_id=request.member_id,
        members=[],
    )


@register(
    JoinGroupRequest,
    0,
    9,
    needs=(groups(Operation.READ, its_group),),
    refusal=whole(_no),
    bound=OF_MEMBERS,
    waits_for=WaitsFor.MEMBERS,
)
async def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    """Join the next generation of a group."""
    # Each member stores it, and its id starts with it.
    client_id = (context.client_id or "")[:_MOST_CLIENT_ID]
    groups = context.broker.groups
    result = await context.ask_group(
        request.group_id,
        Join(
            token=context,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=client_id,
            client_host=f"/{context.channel.client_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            new_member_id=groups.new_member_id(request.group_instance_id or client_id),
            member_id_required=context.version >= 4,
            skip_assignment_supported=context.version >= 9,
            reason=request.reason,
        ),
    )
    assert isinstance(result, JoinResult)
    # Before version 7, the empty string means "no protocol".
    protocol = result.protocol if result.protocol is not None or context.version >= 7 else ""
    return JoinGroupResponse(
        error_code=code_of(result.error),
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )
