"""ListGroups (16), versions 0-5.

Version notes
- 3: flexible. 4: filter by state (KIP-518). 5: filter by group type (KIP-848): `classic`, `consumer` or `share`.
"""

from collections.abc import Iterator

from headrace.broker.admin.acl_authorizer import Grants
from headrace.broker.coordinator.groups import GroupCoordinator
from headrace.kafka.denied import No, Refusal, whole
from headrace.kafka.required_acls import groups
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ListGroupsRequest, ListGroupsResponse
from headrace.security.access.required_acls import Operation, ResourceType

_GROUP_BYTES = 250
"""Memory for one group while the response is built, without its name."""


NEEDS = (
    groups(Operation.DESCRIBE, lambda request, _: (), instead=(Operation.DESCRIBE, ResourceType.CLUSTER), shown=True),
)


def _no(_: ListGroupsRequest, __: RequestContext, no: No) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=no.code)


def _hide(response: ListGroupsResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    shown = []
    for group in response.groups:
        yield
        if grants.allow(NEEDS[0], group.group_id):
            shown.append(group)
    response.groups = shown


@register(ListGroupsRequest, 0, 5, needs=NEEDS, refusal=Refusal(take_out=whole(_no), hide=_hide))
async def handle(request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List groups."""
    states = {state.lower() for state in request.states_filter or ()}
    types = {kind.lower() for kind in request.types_filter or ()}
    known = context.broker.groups
    await context.turn()
    names = known.names()
    await context.reserve(len(names) * _GROUP_BYTES + 2 * sum(map(len, names)))
    found = (group for name in names if (group := _listed(known, name)) is not None)
    return ListGroupsResponse(
        groups=[
            group
            async for group in context.pace().each(found)
            if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
        ]
    )


def _listed(groups: GroupCoordinator, name: str) -> ListGroupsResponse.ListedGroup | None:
    group = groups.describe(name)
    if group is None:
        return None
    return ListGroupsResponse.ListedGroup(
        group_id=group.name,
        protocol_type=group.protocol_type,
        group_state=groups.state_name(name),
        group_type=group.kind.value,
    )
