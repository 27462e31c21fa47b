"""TxnOffsetCommit (28), versions 0-5 (KIP-98): commit offsets of a consumer group in a transaction.

Behavior
- The offsets are durably pending before the response. The end of the transaction makes them committed, or drops them.
- The transaction must include the group (AddOffsetsToTxn). From version 5 on, the request adds it (KIP-890).
- Member, generation and instance are checked as in OffsetCommit, from version 3 on.
- Partitions that do not exist get an error. The others are stored together; more than 500 in several steps.
- While the transaction's coordinator loads or ends the previous one: COORDINATOR_LOAD_IN_PROGRESS.

Version notes
- 2: leader epochs. 3: flexible; members (KIP-447). 4: an error of transactions. 5: adds the group.
"""

from collections.abc import Iterator
from uuid import UUID

from headrace.broker.coordinator.cluster_transactions import TransactionRefused
from headrace.groups.effects import CommitResult
from headrace.groups.events import TxnOffsetCommit
from headrace.groups.model import OffsetAndMetadata
from headrace.kafka.apis.offset_commit import answer_of, codes_of, find_partitions, in_steps
from headrace.kafka.denied import Place
from headrace.kafka.errors import Code, transaction_code
from headrace.kafka.required_acls import (
    each_topic,
    groups,
    its_group,
    its_transaction,
    topics,
    transactional_ids,
)
from headrace.kafka.server.executor import AnswerItem, Each, with_name
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_CHANGES
from headrace.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from headrace.security.access.required_acls import Operation, ResourceType
from headrace.transactions.errors import RETRIABLE
from headrace.transactions.model import GroupId

Asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
Result = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
_MEMBERS_FROM, _ABORTABLE_FROM, _ADDS_FROM = 3, 4, 5


def _outcome(asked: Asked, code: Code, _: str | None) -> Result:
    return Result(partition_index=asked.partition_index, error_code=code)


def _places(
    topic: TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, request: TxnOffsetCommitRequest, _: RequestContext
) -> Iterator[Place]:
    yield ResourceType.TRANSACTIONAL_ID, request.transactional_id
    yield ResourceType.GROUP, request.group_id
    yield ResourceType.TOPIC, topic.name


def _position(asked: Asked, topic_id: UUID) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=asked.committed_metadata or "",
        topic_id=topic_id,
    )


def _code(refused: TransactionRefused, version: int) -> Code:
    if refused.error in RETRIABLE:
        # Clients would look for the group's coordinator again, or not retry at all.
        return Code.COORDINATOR_LOAD_IN_PROGRESS
    return transaction_code(refused.error, fenced=False, abortable=version >= _ABORTABLE_FROM)


@register(
    TxnOffsetCommitRequest,
    0,
    5,
    needs=(
        transactional_ids(Operation.WRITE, its_transaction),
        groups(Operation.READ, its_group),
        topics(Operation.READ, each_topic),
    ),
    each=Each("topics", "topics", _outcome, _places, with_name(TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic)),
    bound=OF_CHANGES,
    one_gives_up_all=True,
)
async def handle(request: TxnOffsetCommitRequest, context: RequestContext) -> AnswerItem:
    """Commit offsets in a transaction."""
    broker, version = context.broker, context.version

    async def verify() -> int:
        return await broker.transactions.join(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            GroupId(request.group_id),
            adds=version >= _ADDS_FROM,
            given_up=lambda: context.done,
        )

    found, errors, ids = await find_partitions(request.topics, context)
    members = version >= _MEMBERS_FROM
    async for number, some in in_steps(found, context):
        event = TxnOffsetCommit(
            token=(context, number),
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            generation=request.generation_id if members else -1,
            member_id=request.member_id if members else "",
            instance_id=request.group_instance_id if members else None,
            positions={place: _position(asked, ids[place.topic]) for place, asked in some.items()},
        )
        try:
            result = await broker.groups.commit_in_transaction(request.group_id, event, verify, lambda: context.done)
        except TransactionRefused as refused:
            code = _code(refused, version)
            return lambda _, asked: _outcome(asked, code, None)
        assert isinstance(result, CommitResult)
        errors.update(codes_of(result))
    return answer_of(errors, _outcome)
