"""CreatePartitions (37), versions 0-3 (KIP-195).

Behavior
- The number of partitions can rise, and never falls. Existing records stay in their partitions.
- A manual replica assignment is accepted if it names only this broker.
- More than 10,000 partitions in one request, or more than `max.broker.partitions` in total, are POLICY_VIOLATION.

Version notes
- 2: flexible.
"""

from operator import attrgetter

from headrace.kafka.apis.create_topics import NAMED_TWICE, Allowance, check_assigned
from headrace.kafka.denied import topic_named
from headrace.kafka.errors import Code, RequestError
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.executor import AnswerItem, Each
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.security.access.required_acls import Operation

Result = CreatePartitionsResponse.CreatePartitionsTopicResult
_STRICT_FROM = 3
"""First version in which clients support THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _no(topic: CreatePartitionsRequest.CreatePartitionsTopic, code: Code, message: str | None) -> Result:
    return Result(name=topic.name, error_code=code, error_message=message)


@register(
    CreatePartitionsRequest,
    0,
    3,
    needs=(topics(Operation.ALTER, each_topic),),
    each=Each("topics", "results", _no, topic_named, key=attrgetter("name"), twice=NAMED_TWICE),
    bound=BY_ITSELF,
)
def handle(request: CreatePartitionsRequest, context: RequestContext) -> AnswerItem:
    """Add partitions to topics."""
    broker, allowance = context.broker, Allowance()

    async def grow(topic: CreatePartitionsRequest.CreatePartitionsTopic) -> None:
        broker.topics.validate_growth(topic.name, topic.count)
        added = topic.count - len(broker.topics.get(topic.name).partitions)
        allowance.take(added)
        given = topic.assignments
        if given is not None:
            if len(given) != added:
                raise RequestError(
                    Code.INVALID_REPLICA_ASSIGNMENT, f"{added} partitions are added, and {len(given)} assigned"
                )
            check_assigned(broker, given)
        if not request.validate_only:
            context.count_change(added, strict_from=_STRICT_FROM)
            await broker.topics.grow(topic.name, topic.count)
            context.changed(f"topic {topic.name} has {topic.count} partitions")

    return grow
