"""Topics and their configurations, as clients see them on the wire."""

from tests.harness.wire import Wire

from headrace.protocol.messages import DescribeConfigsRequest

TOPIC, BROKER = 2, 4


def described(wire: Wire, name: str, version: int = 12, *, create: bool = False) -> tuple[int, int]:
    """Error code and number of partitions."""
    [found] = wire.metadata(name, version=version, create=create).topics
    return found.error_code, len(found.partitions)


def value(wire: Wire, name: str, key: str) -> str | None:
    """The value of a topic's configuration key."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=name, configuration_keys=[key]
    )
    answer = wire.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=False), 4)
    found: str | None = answer.results[0].configs[0].value
    return found
