"""ListConfigResources: what has a configuration (KIP-1142)."""

from tests.harness.wire import Wire
from tests.kafka.config_requests import DELETE, SET, set_config

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


def resources(wire: Wire, *kinds: int, version: int = 1) -> set[tuple[str, int]]:
    answer = wire.ask(m.ListConfigResourcesRequest(resource_types=list(kinds)), version)
    assert answer.error_code == Code.NONE
    return {(each.resource_name, each.resource_type) for each in answer.config_resources}


def test_resources_with_a_configuration_are_listed(wire: Wire, topic: str) -> None:
    wire.create(topic)
    reset = "share.auto.offset.reset"
    assert set_config(wire, topic, (reset, SET, "earliest")).error_code == 0
    topics, brokers, groups = resources(wire, 2), resources(wire, 4), resources(wire, 32)
    assert {(topic, 2), ("__consumer_offsets", 2)} <= topics
    assert brokers == {("1", 4)}
    assert (topic, 32) in groups
    assert resources(wire) == resources(wire, 2, 4, 4, 16, 32) == topics | brokers | groups
    for none in (8, 16):
        assert resources(wire, none) == set()
    assert resources(wire, version=0) == set()
    for unknown in (0, 99):
        answer = wire.ask(m.ListConfigResourcesRequest(resource_types=[2, unknown]), 1)
        assert (answer.error_code, answer.config_resources) == (Code.UNSUPPORTED_VERSION, [])
    described = [
        m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        for name, kind in resources(wire)
    ]
    answer = wire.ask(m.DescribeConfigsRequest(resources=described), 4)
    assert {each.error_code for each in answer.results} == {0}, "what is listed can be described"
    assert set_config(wire, topic, (reset, DELETE, None)).error_code == 0
    assert (topic, 32) not in resources(wire, 32)
