"""ListConfigResources (74), versions 0-1 (KIP-1142).

Behavior
- Lists the resources of DescribeConfigs: the topics of the virtual cluster, its groups with a configuration of their
  own, and the live brokers. There are no resources of Kafka's other types (broker loggers, client metrics). As in
  Kafka, an unknown type is UNSUPPORTED_VERSION.
- No types selects all of them.

Version notes
- 0: client metrics only (KIP-714), so the list is empty. 1: resource types.
"""

from headrace.kafka.apis.describe_configs import BROKER, GROUP, TOPIC
from headrace.kafka.errors import Code
from headrace.kafka.required_acls import cluster
from headrace.kafka.server.registry import register
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ListConfigResourcesRequest, ListConfigResourcesResponse
from headrace.security.access.required_acls import Operation

_BROKER_LOGGER, _CLIENT_METRICS = 8, 16
_KNOWN = frozenset((TOPIC, BROKER, _BROKER_LOGGER, _CLIENT_METRICS, GROUP))
_RESOURCE_BYTES = 350
"""Memory for one topic or group in the response."""

Resource = ListConfigResourcesResponse.ConfigResource


@register(ListConfigResourcesRequest, 0, 1, needs=(cluster(Operation.DESCRIBE_CONFIGS),))
async def handle(request: ListConfigResourcesRequest, context: RequestContext) -> None:
    """List the resources that have a configuration."""
    asked = {_CLIENT_METRICS} if context.version == 0 else set(request.resource_types) or _KNOWN
    if not asked <= _KNOWN:
        context.answer(ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION, config_resources=[]))
        return
    found: list[Resource] = []
    if BROKER in asked:
        found += [Resource(resource_name=str(node_id), resource_type=BROKER) for node_id, _, _ in context.nodes]
    if asked & {TOPIC, GROUP}:
        await context.turn()
        topics, groups = context.broker.topics, context.broker.group_configs.groups
        many = sum(1 for _ in topics) * (TOPIC in asked) + len(groups) * (GROUP in asked)
        await context.reserve(many * _RESOURCE_BYTES)
        if GROUP in asked:
            found += [Resource(resource_name=name, resource_type=GROUP) async for name in context.pace().each(groups)]
        if TOPIC in asked:
            found += [
                Resource(resource_name=live.topic.name, resource_type=TOPIC)
                async for live in context.pace().each(topics.with_internal())
            ]
    await context.answer_in_pieces(ListConfigResourcesResponse(config_resources=found))
