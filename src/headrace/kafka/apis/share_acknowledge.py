"""ShareAcknowledge (79), versions 1-2 (KIP-932).

Behavior
- Accepts, releases or rejects acquired records. The list of a partition counts as a whole, or not at all.
- Responds after the outcome is stored. If storage does not respond, returns COORDINATOR_NOT_AVAILABLE, and the records
  stay acquired until their locks end.
- Session epoch -1 ends the session and releases all records of the member.

Version notes
- 2: renewal of locks (KIP-1222), if the request has it and `share.renew.acknowledge.enable` allows it.
"""

from collections.abc import Iterator
from typing import Any

from headrace.broker.sharing.session import FINAL_EPOCH, FIRST_EPOCH, SessionError
from headrace.kafka.apis.share_fetch import MOST_BYTES, end, its_share_group, its_topics
from headrace.kafka.current_leader import MOVED, CurrentLeaders
from headrace.kafka.denied import No, Refused, Steps, parts, whole
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import groups, referred_names, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_LOGS
from headrace.kafka.share_acknowledgements import Outcomes, acknowledge, batches_of, session_code
from headrace.protocol.messages import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from headrace.security.access.required_acls import Operation, ResourceType

Response = ShareAcknowledgeResponse
PartitionData = ShareAcknowledgeResponse.PartitionData


def _places(topic: ShareAcknowledgeRequest.AcknowledgeTopic, _: Any, context: RequestContext) -> Iterator[Any]:
    return ((ResourceType.TOPIC, name) for name in referred_names((topic.topic_id,), context))


def _no(
    topic: ShareAcknowledgeRequest.AcknowledgeTopic, no: No, _: RequestContext
) -> Response.ShareAcknowledgeTopicResponse:
    refused = [
        PartitionData(partition_index=each.partition_index, error_code=no.code, error_message=no.message)
        for each in topic.partitions
    ]
    return Response.ShareAcknowledgeTopicResponse(topic_id=topic.topic_id, partitions=refused)


_no_group = whole(lambda _, __, no: Response(error_code=no.code, error_message=no.message))
_no_topics = parts("topics", _places, _no, "responses", always=True)


def _take_out(request: ShareAcknowledgeRequest, context: RequestContext, refused: Refused) -> Steps:
    # A timeout refuses everything: the session of the member cannot go on as if it had a response.
    group = refused.first(((ResourceType.GROUP, request.group_id or ""),))
    return (_no_topics if group is None else _no_group)(request, context, refused)


@register(
    ShareAcknowledgeRequest,
    1,
    2,
    needs=(groups(Operation.READ, its_share_group), topics(Operation.READ, its_topics)),
    refusal=_take_out,
    most_bytes=MOST_BYTES,
    bound=OF_LOGS,
    urgent=True,
)
async def handle(request: ShareAcknowledgeRequest, context: RequestContext) -> Response:
    """Acknowledge records."""
    if not request.group_id or not request.member_id or request.share_session_epoch < FINAL_EPOCH:
        return Response(error_code=Code.INVALID_REQUEST)
    if request.share_session_epoch == FIRST_EPOCH:
        return Response(error_code=Code.INVALID_SHARE_SESSION_EPOCH)
    given = batches_of(request.topics)
    shares = context.broker.shares
    try:
        session = shares.sessions.find(request.group_id, request.member_id, request.share_session_epoch)
    except SessionError as error:
        return Response(error_code=session_code(error))
    known = {place: batches for place, batches in given.items() if place in session.partitions}
    unknown = (Code.UNKNOWN_TOPIC_OR_PARTITION, "the share session does not have the partition")
    outcomes: Outcomes = {place: unknown for place in given if place not in known}
    if known:
        outcomes |= await acknowledge(session, known, context, renewing=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        end(session, context)
    return await _response(outcomes, session.group, context)


async def _response(outcomes: Outcomes, group: str, context: RequestContext) -> Response:
    leaders = CurrentLeaders(context, Response)
    by_topic: dict[Any, list[PartitionData]] = {}
    async for (topic_id, index), (code, message) in context.pace().each(outcomes.items()):
        live = context.broker.topics.with_id(topic_id.bytes)
        leader = leaders.find(live, index) if code in MOVED else None
        by_topic.setdefault(topic_id, []).append(
            PartitionData(
                partition_index=index,
                error_code=code,
                error_message=message,
                current_leader=leader or Response.LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
            )
        )
    return Response(
        acquisition_lock_timeout_ms=context.broker.shares.lock_ms(group),
        responses=[
            Response.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in by_topic.items()
        ],
        node_endpoints=leaders.endpoints(),
    )
