"""ConsumerGroupDescribe (69), versions 0-1: consumer groups with their members (KIP-848).

Behavior
- Describes a group once, even if the request names it more than once.
- Returns GROUP_ID_NOT_FOUND for a group that does not exist, or that is not a consumer group.
- Returns TOPIC_AUTHORIZATION_FAILED for a group with a topic that the client may not describe, as in Kafka.
- Returns POLICY_VIOLATION for groups that exceed the memory for responses (`headrace.reads.bytes`).

Version notes
- 1: whether a member uses the protocol of classic groups.
"""

from collections.abc import Iterable, Iterator

from headrace.groups.consumers.description import ConsumerDescription, ConsumerGroupDescription, TopicAssignment
from headrace.groups.consumers.group import ConsumerGroup
from headrace.kafka import described_groups
from headrace.kafka.acl_codes import authorized
from headrace.kafka.denied import Refusal
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import groups
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import cut

Response = ConsumerGroupDescribeResponse
_INSTANCE, _CLASSIC, _CONSUMER = -1, 0, 1
"""Type of an OCI instance (for Kafka: unknown), and of members with this protocol."""
NEEDS = (groups(Operation.DESCRIBE, lambda request, _: request.group_ids), described_groups.TOPICS)


def _refused(name: str, code: Code, message: str | None = None) -> Response.DescribedGroup:
    return Response.DescribedGroup(
        error_code=code, error_message=message, group_id=name, group_state="", assignor_name="", members=[]
    )


def _topics_of(group: Response.DescribedGroup) -> Iterator[str]:
    for member in group.members:
        for assigned in (member.assignment, member.target_assignment):
            for topic in assigned.topic_partitions:
                yield topic.topic_name


_EACH = Each("group_ids", "groups", _refused, described_groups.place, key=str)


@register(
    ConsumerGroupDescribeRequest,
    0,
    1,
    needs=NEEDS,
    refusal=Refusal(take_out=_EACH.take_out, hide=described_groups.hide(_topics_of, _refused)),
    each=_EACH,
    bound=OF_GROUPS,
)
async def handle(request: ConsumerGroupDescribeRequest, context: RequestContext) -> AnswerItem:
    """Describe consumer groups with their members."""
    known = context.broker.groups
    problem = await described_groups.problems(request.group_ids, context)

    async def describe(name: str) -> Response.DescribedGroup:
        code, part = problem(name), known.part(name)
        if code is not None:
            return _refused(name, code)
        if not isinstance(part, ConsumerGroup):
            missing = "is not a consumer group" if known.exists(name) else "not found"
            return _refused(name, Code.GROUP_ID_NOT_FOUND, cut(f"Group {name} {missing}."))
        group = await _described(part.describe_members(), context)
        if request.include_authorized_operations:
            group.authorized_operations = authorized(context, ResourceType.GROUP, name)
        return group

    return describe


async def _described(found: ConsumerGroupDescription, context: RequestContext) -> Response.DescribedGroup:
    return Response.DescribedGroup(
        group_id=found.name,
        group_state=found.state.value,
        group_epoch=found.epoch,
        assignment_epoch=found.target_epoch,
        assignor_name=found.assignor,
        members=[_member(member) async for member in context.pace().each(found.members)],
    )


def _member(member: ConsumerDescription) -> Response.Member:
    return Response.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern or None,
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(member.target),
        member_type=_member_type(member),
    )


def _member_type(member: ConsumerDescription) -> int:
    if member.is_instance:
        return _INSTANCE
    return _CLASSIC if member.is_classic else _CONSUMER


def _assignment(assigned: Iterable[TopicAssignment]) -> Response.Assignment:
    return Response.Assignment(
        topic_partitions=[
            Response.TopicPartitions(topic_id=each.topic_id, topic_name=each.topic, partitions=list(each.partitions))
            for each in assigned
        ]
    )
