"""OffsetFetch (9), versions 1-10.

Behavior
- A partition without a committed offset, or an unknown group, has offset -1 and empty metadata, without an error.
- A group or partition that is named more than once is in the response once.
- A null list of topics selects all committed offsets of the group.
- A group whose committed offsets exceed the memory for responses (`headrace.reads.bytes`) in one request is
  POLICY_VIOLATION.
- In native topics, committed offsets come from the consumer group in Redis. If Redis does not respond, the group has an
  error.

Version notes
- 2: null topics, and an error for the whole group. Up to version 7 each partition has that error, too. aiokafka reads
  only errors of partitions, and would otherwise assume a group without committed offsets.
- 5: leader epochs. 6: flexible. 7: require stable. Partitions with offsets of open transactions then have
  UNSTABLE_OFFSET_COMMIT, and clients try again.
- 8: many groups per request (KIP-709).
- 9: a member of a consumer group has its member id and epoch (KIP-848). 10: topics by id. If all are selected, a topic
  that this broker does not know is left out.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Any
from uuid import UUID

from headrace.broker.admin.acl_authorizer import Grants
from headrace.groups.errors import GroupError
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.kafka.denied import Refusal, Refused, Rest, Steps
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, referred_names, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_POSITIONS
from headrace.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import StorageUnavailable

Group = OffsetFetchResponse.OffsetFetchResponseGroup
_NOTHING = OffsetAndMetadata(offset=-1)

_POSITION_BYTES = 250
"""Memory for one committed offset while the response is built, without its metadata."""
_AT_ONCE = 500
_MEMBERS_FROM, _IDS_FROM = 9, 10
_AGAIN = Code.COORDINATOR_LOAD_IN_PROGRESS
"""The error after which every client retries, with the coordinator of that time.

COORDINATOR_NOT_AVAILABLE ends Java consumers before 3.9, and aiokafka's. After NOT_COORDINATOR, librdkafka reads
nothing of these partitions until the next rebalance (librdkafka issue 5586). So a client of a group that has just moved
retries here until the response to a heartbeat sends it to the other broker.
"""

Asked = Sequence[tuple[str, Iterable[int]]] | None
Answered = list[tuple[str, list[tuple[int, OffsetAndMetadata]]]]


async def _size(context: RequestContext, group: str) -> int:
    size = 0
    async for position in context.pace().each(list(context.broker.groups.positions(group).values())):
        size += _POSITION_BYTES + getsizeof(position.metadata)
    return size


async def _positions(context: RequestContext, group: str, asked: Asked) -> Answered:
    broker, pace = context.broker, context.pace()
    if asked is None:
        committed = await broker.positions(group, None)
        by_topic: dict[str, list[tuple[int, OffsetAndMetadata]]] = {}
        async for partition in pace.each(sorted(committed)):
            by_topic.setdefault(partition.topic, []).append((partition.partition, committed[partition]))
        return list(by_topic.items())
    named: dict[str, dict[int, None]] = {}
    async for topic, indexes in pace.each(asked):
        places = named.setdefault(topic, {})
        async for index in pace.each(indexes):
            places[index] = None
    found: Answered = []
    async for topic, places in pace.each(named.items()):
        some: list[tuple[int, OffsetAndMetadata]] = []
        indexes = list(places)
        for start in range(0, len(indexes), _AT_ONCE):
            wanted = [TopicPartition(topic, index) for index in indexes[start : start + _AT_ONCE]]
            committed = await broker.positions(group, wanted)
            some += ((each.partition, committed.get(each, _NOTHING)) for each in wanted)
            if pace.over:
                await pace.rest()
        found.append((topic, some))
    return found


def _referred(topic: Any, context: RequestContext) -> str | UUID:
    referred: str | UUID = topic.name if context.version < _IDS_FROM else topic.topic_id
    return referred


def _groups(request: OffsetFetchRequest, context: RequestContext) -> Iterable[str]:
    if context.version >= 8:
        return (asked.group_id for asked in request.groups)
    return (request.group_id,)


def _topics(request: OffsetFetchRequest, context: RequestContext) -> Iterable[str]:
    if context.version >= 8:
        every = (topic for asked in request.groups for topic in asked.topics or ())
        return referred_names((_referred(topic, context) for topic in every), context)
    return (topic.name for topic in request.topics or ())


NEEDS = (groups(Operation.DESCRIBE, _groups), topics(Operation.DESCRIBE, _topics, shown=True))


def _no_topic(structures: Any, name: str, indexes: Iterable[int], code: Code) -> Any:
    topic, _ = structures
    return topic(name=name, partitions=[_no_partition(structures, index, code) for index in indexes])


def _no_partition(structures: Any, index: int, code: Code) -> Any:
    _, partition = structures
    return partition(
        partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="", error_code=code
    )


_ONE = OffsetFetchResponse.OffsetFetchResponseTopic, OffsetFetchResponse.OffsetFetchResponsePartition
_MANY = OffsetFetchResponse.OffsetFetchResponseTopics, OffsetFetchResponse.OffsetFetchResponsePartitions


def _without(asked: Any, structures: Any, refused: Refused, context: RequestContext) -> Any:
    if asked.topics is None:
        return []
    kept, answers = [], []
    for topic in asked.topics:
        names = referred_names((_referred(topic, context),), context)
        no = refused.first((ResourceType.TOPIC, name) for name in names)
        if no is None:
            kept.append(topic)
        else:
            answer = _no_topic(structures, topic.name, topic.partition_indexes, no.code)
            if structures is _MANY:
                answer.topic_id = topic.topic_id
            answers.append(answer)
    asked.topics = kept
    return answers


def _take_out(request: OffsetFetchRequest, context: RequestContext, refused: Refused) -> Steps:
    if context.version >= 8:
        return (yield from _take_out_of_many(request, context, refused))
    yield
    no = refused.get((ResourceType.GROUP, request.group_id))
    if no is not None:
        refusals = []
        for topic in request.topics or ():
            yield
            refusals.append(_no_topic(_ONE, topic.name, topic.partition_indexes, no.code))
        return Rest(_refused(context, refusals, no.code))
    answers = _without(request, _ONE, refused, context)
    return Rest(add=lambda response: response.topics.extend(answers))


def _take_out_of_many(request: OffsetFetchRequest, context: RequestContext, refused: Refused) -> Steps:
    kept, answers = [], []
    in_group: dict[str, list[Any]] = {}
    for asked in _merged(request.groups):
        yield
        no = refused.get((ResourceType.GROUP, asked.group_id))
        if no is None:
            kept.append(asked)
            in_group[asked.group_id] = _without(asked, _MANY, refused, context)
        else:
            answers.append(Group(group_id=asked.group_id, topics=[], error_code=no.code))
    request.groups = kept
    if not kept:
        return Rest(OffsetFetchResponse(groups=answers))

    def add(response: OffsetFetchResponse) -> None:
        for group in response.groups:
            if not group.error_code:
                group.topics.extend(in_group[group.group_id])
        response.groups.extend(answers)

    return Rest(add=add)


def _hide(response: OffsetFetchResponse, _: RequestContext, grants: Grants) -> Iterator[None]:
    holders: list[Any] = [response, *response.groups]
    for holder in holders:
        shown: list[Any] = []
        for topic in holder.topics:
            yield
            # An unknown id says nothing about a topic, and has no name.
            if not topic.name or grants.allow(NEEDS[1], topic.name):
                shown.append(topic)
        holder.topics = shown


@register(OffsetFetchRequest, 1, 10, needs=NEEDS, refusal=Refusal(take_out=_take_out, hide=_hide), bound=OF_POSITIONS)
async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Return the committed offsets of groups."""
    if context.version >= 8:
        return OffsetFetchResponse(groups=await _many(request, context))
    group = request.group_id
    if request.topics is None and await context.broker.groups.ready(group) is None:
        await context.reserve(await _size(context, group))
    topics, code = await _answer(context, request, _ONE, stable=request.require_stable)
    if not code:
        return OffsetFetchResponse(topics=topics)
    pace = context.pace()
    async for topic in pace.each(request.topics or ()):
        refused = _no_topic(_ONE, topic.name, (), code)
        async for index in pace.each(topic.partition_indexes):
            refused.partitions.append(_no_partition(_ONE, index, code))
        topics.append(refused)
    return _refused(context, topics, code)


def _refused(context: RequestContext, topics: list[Any], code: Code) -> OffsetFetchResponse:
    if context.version < 2:
        return OffsetFetchResponse(topics=topics)
    return OffsetFetchResponse(topics=topics, error_code=code)


async def _many(request: OffsetFetchRequest, context: RequestContext) -> list[Group]:
    merged = _merged(request.groups)
    sizes: dict[str, int] = {}
    for asked in merged:
        # A group that is not loaded has no size.
        if asked.topics is None and await context.broker.groups.ready(asked.group_id) is None:
            sizes[asked.group_id] = await _size(context, asked.group_id)
    # Before the first read: see `RequestContext.reserve`.
    fitting = await context.reserve_parts(sizes)
    answers = []
    topics: list[Any]
    for asked in merged:
        if asked.group_id in sizes and asked.group_id not in fitting:
            topics, code = [], Code.POLICY_VIOLATION
        else:
            topics, code = await _answer(context, asked, _MANY, stable=request.require_stable)
        answers.append(Group(group_id=asked.group_id, topics=topics, error_code=code))
    return answers


def _merged(
    groups: Iterable[OffsetFetchRequest.OffsetFetchRequestGroup],
) -> Collection[OffsetFetchRequest.OffsetFetchRequestGroup]:
    return {group.group_id: group for group in groups}.values()


async def _answer(context: RequestContext, wanted: Any, structures: Any, *, stable: bool) -> tuple[list[Any], Code]:
    """Return the topics of the response for one group, and an error code.

    `wanted` is the group's part of the request. `structures` are the response classes of a topic and of a partition.
    `stable`: partitions with pending offsets have an error.
    """
    broker = context.broker
    refused = await broker.groups.ready(wanted.group_id)
    if refused is not None:
        again = refused is GroupError.COORDINATOR_NOT_AVAILABLE or broker.groups.moved_lately()
        return [], _AGAIN if again else code_of(refused)
    if context.version >= _MEMBERS_FROM:
        refused = broker.groups.check_fetch(wanted.group_id, wanted.member_id, wanted.member_epoch)
        if refused is not None:
            return [], code_of(refused)
    view = broker.ownership.number
    asked, ids, unknown = await _named(wanted.topics, context)
    # First: if a transaction ends now, its partitions have an error, not their old offsets.
    unstable = broker.groups.unstable(wanted.group_id) if stable else ()
    try:
        found = await _positions(context, wanted.group_id, asked)
    except StorageUnavailable:
        return [], _AGAIN
    if broker.ownership.number != view:
        # The group may have moved, and an empty result would reset its members.
        return [], _AGAIN
    topic_of, partition_of = structures
    topics = [
        topic_of(
            name=topic,
            partitions=[
                _no_partition(structures, index, Code.UNSTABLE_OFFSET_COMMIT)
                if unstable and TopicPartition(topic, index) in unstable
                else partition_of(
                    partition_index=index,
                    committed_offset=position.offset,
                    committed_leader_epoch=position.leader_epoch,
                    metadata=position.metadata,
                )
                for index, position in partitions
            ],
        )
        for topic, partitions in found
    ]
    if context.version >= _IDS_FROM:
        topics = [topic for topic in topics if _identified(topic, ids, context)] + unknown
    return topics, Code.NONE


async def _named(
    wanted: Iterable[Any] | None, context: RequestContext
) -> tuple[list[tuple[str, Iterable[int]]] | None, dict[str, UUID], list[Any]]:
    """Return the topics of a request by name, their ids if it has ids, and the answers for unknown ids."""
    if wanted is None:
        return None, {}, []
    if context.version < _IDS_FROM:
        return [(topic.name, topic.partition_indexes) for topic in wanted], {}, []
    named: list[tuple[str, Iterable[int]]] = []
    ids: dict[str, UUID] = {}
    unknown: dict[UUID, dict[int, None]] = {}
    pace = context.pace()
    async for topic in pace.each(wanted):
        live = context.broker.topics.with_id(topic.topic_id.bytes)
        if live is not None:
            named.append((live.topic.name, topic.partition_indexes))
            ids[live.topic.name] = topic.topic_id
            continue
        places = unknown.setdefault(topic.topic_id, {})
        async for index in pace.each(topic.partition_indexes):
            places[index] = None
    answers = []
    async for topic_id, places in pace.each(unknown.items()):
        answer = _no_topic(_MANY, "", places, Code.UNKNOWN_TOPIC_ID)
        answer.topic_id = topic_id
        answers.append(answer)
    return named, ids, answers


def _identified(topic: Any, ids: dict[str, UUID], context: RequestContext) -> bool:
    """Set the id of a topic in a response. Return whether it has one."""
    topic_id = ids.get(topic.name)
    if topic_id is None:
        live = context.broker.topics.find_referred(topic.name)
        topic_id = None if live is None else live.topic.id
    if topic_id is not None:
        topic.topic_id = topic_id
    return topic_id is not None
