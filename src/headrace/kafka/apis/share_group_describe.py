"""ShareGroupDescribe (77), version 1: share groups with their members (KIP-932).

Behavior
- A group that is named more than once is described once.
- A group that does not exist, or that is not a share group, is GROUP_ID_NOT_FOUND.
- A group with a topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED, as in Kafka.
- Groups that exceed the memory for responses (`headrace.reads.bytes`) in one request are POLICY_VIOLATION.
"""

from collections.abc import Iterator

from headrace.broker.admin.acl_authorizer import Grants
from headrace.groups.errors import GroupError
from headrace.groups.sharing import assignor
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.sharing.member import Sharer
from headrace.kafka.acl_codes import authorized
from headrace.kafka.denied import Place, Refusal
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import cut

Response = ShareGroupDescribeResponse
_HIDDEN = "The group uses topics that the client may not describe."
NEEDS = (
    groups(Operation.DESCRIBE, lambda request, _: request.group_ids),
    topics(Operation.DESCRIBE, lambda request, _: (), shown=True),
)


def _places(name: str, _: ShareGroupDescribeRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.GROUP, name


def _refused(name: str, code: Code, message: str | None = None) -> Response.DescribedGroup:
    return Response.DescribedGroup(
        error_code=code, error_message=message, group_id=name, group_state="", assignor_name="", members=[]
    )


def _hide(response: Response, _: RequestContext, grants: Grants) -> Iterator[None]:
    shown = []
    for group in response.groups:
        hidden = False
        for name in {name for member in group.members for name in member.subscribed_topic_names}:
            yield
            if not grants.allow(NEEDS[1], name):
                hidden = True
                break
        shown.append(_refused(group.group_id, Code.TOPIC_AUTHORIZATION_FAILED, _HIDDEN) if hidden else group)
    response.groups = shown


_EACH = Each("group_ids", "groups", _refused, _places, key=str)


@register(
    ShareGroupDescribeRequest,
    1,
    1,
    needs=NEEDS,
    refusal=Refusal(take_out=_EACH.take_out, hide=_hide),
    each=_EACH,
    bound=OF_GROUPS,
)
async def handle(request: ShareGroupDescribeRequest, context: RequestContext) -> AnswerItem:
    """Describe share groups with their members."""
    known, ownership = context.broker.groups, context.broker.ownership
    view = ownership.number
    named = dict.fromkeys(request.group_ids)
    errors = {name: await known.ready(name) async for name in context.pace().each(named)}
    fitting = await context.reserve_parts({name: known.size(name) for name in named})

    async def describe(name: str) -> Response.DescribedGroup:
        if name not in fitting:
            return _refused(name, Code.POLICY_VIOLATION)
        error, part = errors[name], known.part(name)
        if error is None and not known.exists(name) and ownership.number != view:
            # The cluster membership has changed since the groups were loaded, and another broker may coordinate it.
            error = GroupError.COORDINATOR_NOT_AVAILABLE
        if error is not None:
            return _refused(name, code_of(error))
        if not isinstance(part, ShareGroup):
            missing = "is not a share group" if known.exists(name) else "not found"
            return _refused(name, Code.GROUP_ID_NOT_FOUND, cut(f"Group {name} {missing}."))
        group = await _described(part, context)
        if request.include_authorized_operations:
            group.authorized_operations = authorized(context, ResourceType.GROUP, name)
        return group

    return describe


async def _described(part: ShareGroup, context: RequestContext) -> Response.DescribedGroup:
    members = tuple(part.members.values())
    return Response.DescribedGroup(
        group_id=part.name,
        group_state=part.state,
        group_epoch=part.epoch,
        assignment_epoch=part.target_epoch,
        assignor_name=assignor.NAME,
        members=[_member(part, member) async for member in context.pace().each(members)],
    )


def _member(part: ShareGroup, member: Sharer) -> Response.Member:
    return Response.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=Response.Assignment(
            topic_partitions=[
                Response.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(indexes))
                for name, (topic_id, indexes) in part.assigned_to(member).items()
            ]
        ),
    )
