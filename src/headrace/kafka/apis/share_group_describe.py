"""ShareGroupDescribe (77), version 1: share groups with their members (KIP-932).

Behavior
- Describes a group once, even if the request names it more than once.
- Returns GROUP_ID_NOT_FOUND for a group that does not exist, or that is not a share group.
- Returns TOPIC_AUTHORIZATION_FAILED for a group with a topic that the client may not describe, as in Kafka.
- Returns POLICY_VIOLATION for groups that exceed the memory for responses (`headrace.reads.bytes`).
"""

from collections.abc import Iterable

from headrace.groups.sharing import assignor
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.sharing.member import Sharer
from headrace.kafka import described_groups
from headrace.kafka.acl_codes import authorized
from headrace.kafka.denied import Refusal
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import groups
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import cut

Response = ShareGroupDescribeResponse
NEEDS = (groups(Operation.DESCRIBE, lambda request, _: request.group_ids), described_groups.TOPICS)


def _refused(name: str, code: Code, message: str | None = None) -> Response.DescribedGroup:
    return Response.DescribedGroup(
        error_code=code, error_message=message, group_id=name, group_state="", assignor_name="", members=[]
    )


def _topics_of(group: Response.DescribedGroup) -> Iterable[str]:
    return {name for member in group.members for name in member.subscribed_topic_names}


_EACH = Each("group_ids", "groups", _refused, described_groups.place, key=str)


@register(
    ShareGroupDescribeRequest,
    1,
    1,
    needs=NEEDS,
    refusal=Refusal(take_out=_EACH.take_out, hide=described_groups.hide(_topics_of, _refused)),
    each=_EACH,
    bound=OF_GROUPS,
)
async def handle(request: ShareGroupDescribeRequest, context: RequestContext) -> AnswerItem:
    """Describe share groups with their members."""
    known = context.broker.groups
    problem = await described_groups.problems(request.group_ids, context)

    async def describe(name: str) -> Response.DescribedGroup:
        code, part = problem(name), known.part(name)
        if code is not None:
            return _refused(name, code)
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
