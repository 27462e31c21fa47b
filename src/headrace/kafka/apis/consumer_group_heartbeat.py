"""ConsumerGroupHeartbeat (68), versions 0-1 (KIP-848).

Behavior
- A member joins with epoch 0 and leaves with -1. A static member that leaves temporarily sends -2.
- Each response contains the interval until the next heartbeat: 100 ms or more if the member's partitions are about to
  change, otherwise from 300 ms to `group.consumer.heartbeat.interval.ms`, by the number of members.
- The server rejects a request with a named topic that the client may not describe, as in Kafka.
- Partitions of topics that match a regular expression come with a later response than those of named topics.

Version notes
- 0: the server creates the ID of a member that has none. 1: regular expressions, and IDs created by clients.
"""

from collections.abc import Iterable
from uuid import uuid4

from headrace.broker.coordinator.pattern_subscriptions import Subscriber
from headrace.groups.consumers.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.groups.model import JOIN_EPOCH, Assignment, GroupKind
from headrace.kafka.errors import Code, code_of
from headrace.kafka.newer_members import client_id, subscribed_names, topic_facts, topic_partitions
from headrace.kafka.required_acls import groups, its_group, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import OF_MEMBERS
from headrace.protocol.messages import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from headrace.security.access.required_acls import Operation
from headrace.text.patterns import InvalidPattern, Pattern
from headrace.topics.errors import cut

_SHOWN = 200
"""Maximum characters of a pattern in an error message."""
Response = ConsumerGroupHeartbeatResponse


@register(
    ConsumerGroupHeartbeatRequest,
    0,
    1,
    needs=(groups(Operation.READ, its_group), topics(Operation.DESCRIBE, subscribed_names)),
    bound=OF_MEMBERS,
    urgent=True,
)
async def handle(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Response:
    """Handle the heartbeat of a member."""
    member_id, pattern = request.member_id, request.subscribed_topic_regex
    if not request.group_id:
        return Response(error_code=Code.INVALID_REQUEST, error_message="GroupId can't be empty.")
    if not member_id and context.version == 0 and request.member_epoch == JOIN_EPOCH:
        member_id = str(uuid4())
    if pattern:
        try:
            Pattern(pattern)
        except InvalidPattern as error:
            message = f"SubscribedTopicRegex `{pattern[:_SHOWN]}` is not a valid regular expression: {error}."
            return Response(error_code=Code.INVALID_REGULAR_EXPRESSION, error_message=cut(message))
    groups, group = context.broker.groups, request.group_id
    names = request.subscribed_topic_names
    heartbeat = ConsumerHeartbeat(
        token=context,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else tuple(names),
        pattern=pattern,
        server_assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else await _owned(request.topic_partitions, context),
        client_id=client_id(context),
        client_host=f"/{context.channel.client_host}",
        connection=context.channel.number,
        facts=await topic_facts(names, context) if names else {},
    )
    result = await _asked(group, heartbeat, context)
    if result.error is not None:
        return Response(error_code=code_of(result.error), error_message=cut(result.message) or None)
    waits, left = result.waits, result.member_epoch < JOIN_EPOCH
    assigned = None
    if result.assignment is not None:
        partitions = await topic_partitions(result.assignment, Response.TopicPartitions, context)
        assigned = Response.Assignment(topic_partitions=partitions)
    return Response(
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=0 if left else groups.heartbeat_interval_ms(group, GroupKind.CONSUMER, waits=waits),
        assignment=assigned,
    )


async def _asked(group: str, heartbeat: ConsumerHeartbeat, context: RequestContext) -> ConsumerHeartbeatResult:
    """Send a heartbeat to its group. Only one that it accepts changes whose topics the member's pattern has."""
    patterns, member_id = context.broker.groups.patterns, heartbeat.member_id
    subscriber = Subscriber(context.principal, context.channel.client_host)
    before = patterns.note(group, member_id, subscriber) if heartbeat.pattern else None
    accepted = False
    try:
        result = await context.ask_group(group, heartbeat)
        assert isinstance(result, ConsumerHeartbeatResult)
        accepted = result.error is None
    finally:
        # A request may also be given up, or its member leave.
        if heartbeat.pattern or accepted:
            patterns.settle(group, member_id, subscriber if accepted else before)
    return result


async def _owned(owned: Iterable[ConsumerGroupHeartbeatRequest.TopicPartitions], context: RequestContext) -> Assignment:
    return tuple([(each.topic_id, tuple(each.partitions)) async for each in context.pace().each(owned)])
