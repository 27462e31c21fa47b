"""DescribeConfigs: which values are shown as set, and where they come from."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.topic_requests import TOPIC

from headrace.protocol import messages as m
from headrace.protocol.messages import (
    DescribeConfigsRequest,
)

DEFAULT = 5


@pytest.mark.parametrize("storage", ["log", "native"])
def test_only_what_was_set_is_shown_as_set(wire: Wire, topic: str, storage: str) -> None:
    """Tools list the topics with settings of their own, and copy these, by where each value comes from."""
    wire.create(topic, headrace_storage=storage, retention_ms=5)
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    [told] = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert {entry.name for entry in told.configs if entry.config_source != DEFAULT} == {
        "headrace.storage",
        "retention.ms",
    }
    shown = {entry.name: entry for entry in told.configs}
    assert shown["headrace.streams"].read_only
    assert topic in shown["headrace.streams"].value


def test_settings_that_were_given_are_static(wire: Wire) -> None:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=["socket.request.max.bytes", "num.partitions"]
    )
    [answer] = wire.ask(m.DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results
    static, default = 4, 5
    told = {each.name: (each.config_source, [(s.value, s.source) for s in each.synonyms]) for each in answer.configs}
    given = str(4 << 20)
    assert told["socket.request.max.bytes"] == (static, [(given, static), ("104857600", default)])
    assert told["num.partitions"] == (default, [("1", default)])
