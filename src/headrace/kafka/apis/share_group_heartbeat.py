"""ShareGroupHeartbeat (76), version 1 (KIP-932).

Behavior
- A member joins with epoch 0 and its topics, and leaves with -1. The client creates its ID.
- The response to the join contains the assignment. The server initializes the states of the partitions before.
- The server rejects a request with a topic that the client may not describe, as in Kafka.
- The server removes a member after 45 s without a heartbeat (`group.share.session.timeout.ms`). A lost connection does
  not remove it, but releases its acquired records.
"""

from headrace.groups.errors import GroupError
from headrace.groups.model import LEAVE_EPOCH, GroupKind
from headrace.groups.sharing.events import ShareHeartbeat, ShareHeartbeatResult
from headrace.kafka.errors import Code, code_of
from headrace.kafka.newer_members import client_id, subscribed_names, topic_facts, topic_partitions
from headrace.kafka.required_acls import groups, its_group, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_MEMBERS
from headrace.protocol.messages import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError, cut

Response = ShareGroupHeartbeatResponse


@register(
    ShareGroupHeartbeatRequest,
    1,
    1,
    needs=(groups(Operation.READ, its_group), topics(Operation.DESCRIBE, subscribed_names)),
    bound=OF_MEMBERS,
    urgent=True,
)
async def handle(request: ShareGroupHeartbeatRequest, context: RequestContext) -> Response:
    """Handle the heartbeat of a member of a share group."""
    group, names = request.group_id, request.subscribed_topic_names
    if not group:
        return Response(error_code=Code.INVALID_REQUEST, error_message="GroupId can't be empty.")
    broker = context.broker
    result = await context.ask_group(
        group,
        ShareHeartbeat(
            token=context,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=None if names is None else tuple(names),
            client_id=client_id(context),
            client_host=f"/{context.channel.client_host}",
            facts=await topic_facts(names or (), context),
        ),
    )
    assert isinstance(result, ShareHeartbeatResult)
    error, message = result.error, result.message
    if error is None and result.states:
        try:
            await broker.shares.begin(group, result.states)
        except TopicError as unstored:
            # The member retries with the epoch that it knows, and gets its assignment.
            error, message = GroupError.COORDINATOR_NOT_AVAILABLE, str(unstored)
    if error is not None:
        return Response(error_code=code_of(error), error_message=cut(message) or None)
    left = result.member_epoch == LEAVE_EPOCH
    interval_ms = broker.groups.heartbeat_interval_ms(group, GroupKind.SHARE, waits=result.waits)
    assigned = None
    if result.assignment is not None:
        partitions = await topic_partitions(result.assignment, Response.TopicPartitions, context)
        assigned = Response.Assignment(topic_partitions=partitions)
    return Response(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=0 if left else interval_ms,
        assignment=assigned,
    )
