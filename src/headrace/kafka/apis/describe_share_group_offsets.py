"""DescribeShareGroupOffsets (90), versions 0-1: start offsets and lag of share groups (KIP-932).

Behavior
- Without topics, describes all topics of the group. A group that does not exist, or of another kind, has none.
- Describes a named partition of an unknown group, topic or partition without an offset and without an error.
- The start offset is the first offset that is not done. It is -1 before a member has fetched from the partition.
- Leaves out topics that the client may not describe.
- A group or partition that is named more than once is described once.
- Groups that exceed the memory for responses (`headrace.reads.bytes`) in one request are POLICY_VIOLATION.

Version notes
- 1: lag (KIP-1226), the number of records that are not done, including those in flight. -1: unknown.
"""

from collections.abc import Collection, Iterator, Mapping
from operator import attrgetter
from typing import Any

from headrace.broker.admin.acl_authorizer import Grants
from headrace.broker.partition.source import UNCOMMITTED
from headrace.groups.errors import GroupError
from headrace.groups.sharing.group import ShareGroup
from headrace.groups.sharing.state import NOT_BEGUN
from headrace.kafka.denied import Place, Refusal
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_GROUPS
from headrace.protocol.messages import DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import TopicError, UnknownTopic
from headrace.topics.native import SharePosition

Response = DescribeShareGroupOffsetsResponse
Group = Response.DescribeShareGroupOffsetsResponseGroup
Topic = Response.DescribeShareGroupOffsetsResponseTopic
Part = Response.DescribeShareGroupOffsetsResponsePartition
NEEDS = (
    groups(Operation.DESCRIBE, lambda request, _: (group.group_id for group in request.groups)),
    topics(Operation.DESCRIBE, lambda request, _: (), shown=True),
)


def _places(group: Any, _: DescribeShareGroupOffsetsRequest, __: RequestContext) -> Iterator[Place]:
    yield ResourceType.GROUP, group.group_id


def _refused(group: Any, code: Code, message: str | None = None) -> Group:
    return Group(group_id=group.group_id, topics=[], error_code=code, error_message=message)


def _hide(response: Response, _: RequestContext, grants: Grants) -> Iterator[None]:
    for group in response.groups:
        shown = []
        for topic in group.topics:
            yield
            if grants.allow(NEEDS[1], topic.topic_name):
                shown.append(topic)
        group.topics = shown


_PART_BYTES = 400
"""Memory of a partition in the response."""
_EACH = Each("groups", "groups", _refused, _places, key=attrgetter("group_id"))


@register(
    DescribeShareGroupOffsetsRequest,
    0,
    1,
    needs=NEEDS,
    refusal=Refusal(take_out=_EACH.take_out, hide=_hide),
    each=_EACH,
    element_bytes=4,
    bound=OF_GROUPS,
)
async def handle(request: DescribeShareGroupOffsetsRequest, context: RequestContext) -> AnswerItem:
    """Describe the offsets of share groups."""
    known = context.broker.groups
    errors: dict[str, GroupError | None] = {}
    sizes: dict[str, int] = {}
    async for asked in context.pace().each(request.groups):
        errors[asked.group_id] = await known.ready(asked.group_id)
        part = known.part(asked.group_id)
        places = _places_of(part if isinstance(part, ShareGroup) else None, asked)
        sizes[asked.group_id] = _PART_BYTES * sum(map(len, places.values()))
    fitting = await context.reserve_parts(sizes)

    async def describe(asked: Any) -> Group:
        if asked.group_id not in fitting:
            return _refused(asked, Code.POLICY_VIOLATION)
        error = errors[asked.group_id]
        if error is not None:
            return _refused(asked, code_of(error))
        part = known.part(asked.group_id)
        group = part if isinstance(part, ShareGroup) else None
        places = _places_of(group, asked)
        described = [
            await _topic(group, name, indexes, context) async for name, indexes in context.pace().each(places.items())
        ]
        return Group(group_id=asked.group_id, topics=described, error_message=None)

    return describe


def _places_of(group: ShareGroup | None, asked: Any) -> Mapping[str, Collection[int]]:
    """Return the partitions to describe by topic, each once. `group` is None if there is no share group of the name."""
    if asked.topics is None:
        return {} if group is None else {name: range(topic.partitions) for name, topic in sorted(group.topics.items())}
    return {topic.topic_name: dict.fromkeys(topic.partitions) for topic in asked.topics}


async def _topic(group: ShareGroup | None, name: str, indexes: Collection[int], context: RequestContext) -> Topic:
    live = context.broker.topics.find_referred(name)

    async def one(index: int) -> Part:
        return await _partition(group, name, index, context)

    return Topic(
        topic_name=name,
        **({} if live is None else {"topic_id": live.topic.id}),
        partitions=[found async for _, found in context.broker.lane.a_few_at_once(list(indexes), one)],
    )


async def _partition(group: ShareGroup | None, name: str, index: int, context: RequestContext) -> Part:
    """Describe one partition. As in Kafka, it is no error that the group, the topic or the partition is unknown."""
    broker = context.broker
    described = Part(partition_index=index, start_offset=NOT_BEGUN, error_message=None)
    if group is None or name not in group.topics:
        return described
    try:
        partition = broker.topics.partition(name, index)
    except UnknownTopic:
        return described
    try:
        state = await broker.shares.look(group.name, partition)
        if isinstance(state, SharePosition):
            described.start_offset, described.leader_epoch = state.start, 0
            described.lag = -1 if state.lag is None else state.lag
            return described
        if state is None or state.spso == NOT_BEGUN:
            return described
        source = await broker.source(partition)
        described.start_offset = max(state.spso, source.log_start)
        described.leader_epoch = max(source.leader_epoch, 0)
        done = state.done_from(described.start_offset)
        described.lag = max(0, source.visible_end(UNCOMMITTED) - described.start_offset - done)
    except (TopicError, UnknownTopic) as error:
        described.error_code, described.error_message = code_of(error), str(error)
    return described
