"""DescribeGroups (15), versions 0-6.

Behavior
- A group that is named more than once is described once.
- Groups that exceed the memory for responses (`headrace.reads.bytes`) in one request are POLICY_VIOLATION.
- A group that does not exist, or that is not classic, is `Dead`, without an error. From version 6 on it is
  GROUP_ID_NOT_FOUND with a message (KIP-1043). ConsumerGroupDescribe describes consumer groups.

Version notes
- 3: authorized operations. 4: static members. 5: flexible. 6: error messages.
"""

from headrace.groups.description import GroupDescription
from headrace.groups.model import GroupKind
from headrace.kafka import described_groups
from headrace.kafka.acl_codes import authorized
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import groups
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import cut

Group = DescribeGroupsResponse.DescribedGroup
_STRICT_FROM = 6


def _refused(name: str, code: Code, message: str | None = None) -> Group:
    return Group(
        error_code=code,
        error_message=message,
        group_id=name,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
    )


@register(
    DescribeGroupsRequest,
    0,
    6,
    needs=(groups(Operation.DESCRIBE, lambda request, _: request.groups),),
    each=Each("groups", "groups", _refused, described_groups.place, key=str),
    bound=OF_GROUPS,
)
async def handle(request: DescribeGroupsRequest, context: RequestContext) -> AnswerItem:
    """Describe groups with their members."""
    known = context.broker.groups
    problem = await described_groups.problems(request.groups, context)

    def describe(name: str) -> Group:
        code = problem(name)
        if code is not None:
            return _refused(name, code)
        group = _described(name, known.describe(name), strict=context.version >= _STRICT_FROM)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = authorized(context, ResourceType.GROUP, name)
        return group

    return describe


def _described(name: str, found: GroupDescription | None, *, strict: bool) -> Group:
    if found is None or found.kind is not GroupKind.CLASSIC:
        dead = Group(group_id=name, group_state="Dead", protocol_type="", protocol_data="", members=[])
        if strict:
            dead.error_code = Code.GROUP_ID_NOT_FOUND
            missing = "not found" if found is None else "is not a classic group"
            dead.error_message = cut(f"Group {name} {missing}.")
        return dead
    return Group(
        group_id=name,
        group_state=found.state.value,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in found.members
        ],
    )
