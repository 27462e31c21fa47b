"""CreatePartitions (37), versions 0-3 (KIP-195).

Behavior
- A topic's partitions can become more, never fewer. Records that are there stay where they are.
- Manual replica assignments are taken when they name this broker and nothing else.
- 10 000 partitions at most in one request, and `max.broker.partitions` in all: POLICY_VIOLATION.

Version notes
- 2: flexible.
"""

from collections import Counter

from headrace.kafka.apis.create_topics import Allowance, check_assigned
from headrace.kafka.denied import No, parts, topic_named
from headrace.kafka.errors import Code, RequestError, code_of
from headrace.kafka.required_acls import each_topic, topics
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.kafka.server.timeouts import BY_ITSELF
from headrace.protocol.messages import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.security.access.required_acls import Operation
from headrace.topics.errors import TopicError

Result = CreatePartitionsResponse.CreatePartitionsTopicResult
_STRICT_FROM = 3
"""The version from which on clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


def _no(topic: CreatePartitionsRequest.CreatePartitionsTopic, no: No, _: RequestContext) -> Result:
    return Result(name=topic.name, error_code=no.code, error_message=no.message)


@register(
    CreatePartitionsRequest,
    0,
    3,
    needs=(topics(Operation.ALTER, each_topic),),
    refusal=parts("topics", topic_named, _no, "results"),
    bound=BY_ITSELF,
)
async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    """Add partitions to topics, each on its own."""
    named = Counter(topic.name for topic in request.topics)
    allowance = Allowance()
    results = []
    async for topic in context.parts(request.topics):
        try:
            if named[topic.name] > 1:
                raise RequestError(Code.INVALID_REQUEST, f"topic {topic.name!r} is named more than once")
            await _grow(context, topic, allowance, validate_only=request.validate_only)
        except (TopicError, RequestError) as error:
            results.append(Result(name=topic.name, error_code=code_of(error), error_message=str(error)))
        else:
            results.append(Result(name=topic.name))
    return CreatePartitionsResponse(results=results)


async def _grow(
    context: RequestContext,
    topic: CreatePartitionsRequest.CreatePartitionsTopic,
    allowance: Allowance,
    *,
    validate_only: bool,
) -> None:
    broker = context.broker
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
    if not validate_only:
        context.count_change(added, strict_from=_STRICT_FROM)
        await broker.topics.grow(topic.name, topic.count)
        context.changed(f"topic {topic.name} has {topic.count} partitions")
