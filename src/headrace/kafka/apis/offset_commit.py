"""OffsetCommit (8), versions 2-8.

Behavior
- Partitions that do not exist get their own error; the others are committed together, durable before the answer; more
  than 500 in several steps.

Version notes
- 2-4: a retention time per request, ignored as since Kafka 2.1. 6: leader epochs. 7: static members. 8: flexible.
"""

from uuid import UUID

from headrace.groups.effects import CommitResult
from headrace.groups.events import Commit
from headrace.groups.model import OffsetAndMetadata
from headrace.kafka.denied import group_and_topic, parts
from headrace.kafka.offset_changes import Answers, find_partitions, in_steps
from headrace.kafka.required_acls import each_topic, groups, its_group, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import COMMIT
from headrace.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from headrace.security.access.required_acls import Operation

_ANSWERS = Answers(OffsetCommitResponse.OffsetCommitResponseTopic, OffsetCommitResponse.OffsetCommitResponsePartition)


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
    8,
    needs=(groups(Operation.READ, its_group), topics(Operation.READ, each_topic)),
    refusal=parts("topics", group_and_topic, _ANSWERS.refused, "topics"),
    bound=COMMIT,
    one_gives_up_all=True,
)
async def handle(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    """Commit positions of a group."""
    pace = context.pace()
    found, errors, ids = await find_partitions(request.topics, context, pace)
    for number, some in enumerate(in_steps(found)):
        result = await context.ask_group(
            request.group_id,
            Commit(
                token=(context, number),
                generation=request.generation_id_or_member_epoch,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                positions={place: _position(asked, ids[place.topic]) for place, asked in some.items()},
            ),
        )
        assert isinstance(result, CommitResult)
        if context.done:
            return OffsetCommitResponse(topics=[])  # it was given up: the rest may be older than what came since
        errors.update(result.partitions)
        if pace.over:
            await pace.rest()
    return OffsetCommitResponse(topics=await _ANSWERS.made(request.topics, errors, pace))
