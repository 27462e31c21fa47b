"""The rules by which pages say what they need, in Kafka's terms: what the Kafka API needs that tells the same."""

from collections.abc import Iterable

from headrace.console.registry import SHOWN, Ask
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType, Rule

MOVED = Rule(operation=Operation.READ, type=ResourceType.TOPIC, resources=lambda ask: (), shown=True)
"""What has to be granted of each topic in which positions of a group are moved, as of Kafka's OffsetCommit."""


def of_topic(ask: Ask, name: str) -> Resource:
    """A topic of the virtual cluster that is asked about."""
    return Resource(ResourceType.TOPIC, name, ask.broker.cluster)


def topic(operation: Operation) -> Rule:
    """An operation on the topic in the path."""

    def named(ask: Ask) -> Iterable[Resource]:
        yield of_topic(ask, ask.path["name"])

    return Rule(operation=operation, type=ResourceType.TOPIC, resources=named)


def group(operation: Operation) -> Rule:
    """An operation on the group in the path."""

    def named(ask: Ask) -> Iterable[Resource]:
        yield Resource(ResourceType.GROUP, ask.path["name"], ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.GROUP, resources=named)


def shown(*kinds: ResourceType) -> tuple[Rule, ...]:
    """Describing whatever of these kinds the page shows."""
    return tuple(SHOWN[kind] for kind in kinds)


def server(operation: Operation) -> Rule:
    """An operation on the server as a whole."""

    def cluster(ask: Ask) -> Iterable[Resource]:
        yield Resource(ResourceType.CLUSTER, CLUSTER_NAME, ask.broker.cluster)

    return Rule(operation=operation, type=ResourceType.CLUSTER, resources=cluster)
