"""OffsetCommit (8), versions 2-10.

Behavior
- Partitions that do not exist get an error. The others are committed together, and are durable before the response.
  More than 500 are committed in several steps.

Version notes
- 2-4: a retention time per request, ignored as in Kafka since 2.1. 6: leader epochs. 7: static members. 8: flexible.
- 9: members of consumer groups commit with their member epoch (KIP-848). 10: topics by id.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from headrace.groups.effects import CommitResult
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata, TopicPartition
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, code_of
from headrace.kafka.required_acls import groups, its_group, referred_names, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import COMMIT
from headrace.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.topics.errors import UnknownTopic

_AT_ONCE = 500
"""Committed offsets per step: more would delay other groups."""

_EPOCHS_FROM = 9
IDS_FROM = 10
"""First version that names topics by id."""

Errors = dict[TopicPartition, Code]


async def find_partitions(
    topics: Iterable[Any], context: RequestContext, *, by_id: bool = False
) -> tuple[dict[TopicPartition, Any], Errors, dict[str, UUID]]:
    """Return the partitions of a request with their parts of it, errors for unknown ones, and topic ids.

    `by_id`: the topics of the request have ids. They get their names, or an empty one if an id is unknown. A topic may
    have another id by the time that this returns.
    """
    pace = context.pace()
    found: dict[TopicPartition, Any] = {}
    errors: Errors = {}
    ids: dict[str, UUID] = {}
    async for topic in pace.each(topics):
        if by_id:
            known = context.broker.topics.with_id(topic.topic_id.bytes)
            topic.name = "" if known is None else known.topic.name
        async for asked in pace.each(topic.partitions):
            place = TopicPartition(topic.name, asked.partition_index)
            try:
                live = context.broker.topics.referred(topic.topic_id if by_id else topic.name)
                live.partition(asked.partition_index)
            except UnknownTopic as error:
                errors[place] = code_of(error) if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found[place] = asked
                ids.setdefault(topic.name, live.topic.id)
    return found, errors, ids


def in_steps(
    found: Mapping[TopicPartition, Any], context: RequestContext
) -> AsyncIterator[tuple[int, dict[TopicPartition, Any]]]:
    """Yield numbered parts of the partitions, one per step, and at least one."""
    items = list(found.items())
    starts = range(0, max(1, len(items)), _AT_ONCE)
    return context.parts(enumerate(dict(items[start : start + _AT_ONCE]) for start in starts))


def answer_of(errors: Errors, outcome: Callable[[Any, Code, str | None], Any]) -> AnswerItem:
    """Return a function that builds the response for a partition from these errors."""
    return lambda topic, asked: outcome(asked, errors[TopicPartition(topic.name, asked.partition_index)], None)


def codes_of(result: CommitResult) -> Errors:
    """Return the error code of each partition."""
    return {place: code_of(error) for place, error in result.partitions.items()}


def _referred(topic: OffsetCommitRequest.OffsetCommitRequestTopic, context: RequestContext) -> str | UUID:
    return topic.name if context.version < IDS_FROM else topic.topic_id


def _names(request: OffsetCommitRequest, context: RequestContext) -> Iterable[str]:
    return referred_names((_referred(topic, context) for topic in request.topics), context)


def _places(
    topic: OffsetCommitRequest.OffsetCommitRequestTopic, request: OffsetCommitRequest, context: RequestContext
) -> Iterator[Place]:
    yield ResourceType.GROUP, request.group_id
    for name in referred_names((_referred(topic, context),), context):
        yield ResourceType.TOPIC, name


def _of_topic(
    asked: OffsetCommitRequest.OffsetCommitRequestTopic, partitions: list[Any]
) -> OffsetCommitResponse.OffsetCommitResponseTopic:
    return OffsetCommitResponse.OffsetCommitResponseTopic(
        name=asked.name, topic_id=asked.topic_id, partitions=partitions
    )


def _outcome(asked: Any, code: Code, _: str | None) -> OffsetCommitResponse.OffsetCommitResponsePartition:
    return OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)


def _position(asked: OffsetCommitRequest.OffsetCommitRequestPartition, topic_id: UUID) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        topic_id=topic_id,
    )


@register(
    OffsetCommitRequest,
    2,
    10,
    needs=(groups(Operation.READ, its_group), topics(Operation.READ, _names)),
    each=Each("topics", "topics", _outcome, _places, _of_topic),
    bound=COMMIT,
    one_gives_up_all=True,
)
async def handle(request: OffsetCommitRequest, context: RequestContext) -> AnswerItem:
    """Commit offsets of a group."""
    found, errors, ids = await find_partitions(request.topics, context, by_id=context.version >= IDS_FROM)
    # If one step is given up, the rest may be older than later commits.
    async for number, some in in_steps(found, context):
        result = await context.ask_group(
            request.group_id,
            Commit(
                token=(context, number),
                generation=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                knows_member_epochs=context.version >= _EPOCHS_FROM,
                positions={place: _position(asked, ids[place.topic]) for place, asked in some.items()},
            ),
        )
        assert isinstance(result, CommitResult)
        errors.update(codes_of(result))
    return answer_of(errors, _outcome)
