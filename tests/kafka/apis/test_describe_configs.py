"""DescribeConfigs: which values are shown as set, and where they come from."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.config_requests import SET, config_of, set_config
from tests.kafka.topic_requests import TOPIC

from headrace.kafka.errors import Code
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


def test_a_group_that_does_not_exist_has_the_brokers_defaults(wire: Wire, topic: str) -> None:
    found = config_of(wire, topic, include_synonyms=True, include_documentation=True)
    assert (found.error_code, found.resource_type, found.resource_name) == (0, 32, topic)
    entries = {each.name: each for each in found.configs}
    assert len(entries) == 14
    session = entries["consumer.session.timeout.ms"]
    assert (session.value, session.config_source, session.read_only, session.config_type) == (
        "45000",
        DEFAULT,
        False,
        3,
    )
    assert [(each.name, each.value, each.source) for each in session.synonyms] == [
        ("group.consumer.session.timeout.ms", "45000", DEFAULT)
    ]
    assert session.documentation
    assert entries["share.auto.offset.reset"].value == "latest"


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_groups_own_value_has_its_source(wire: Wire, topic: str, version: int) -> None:
    assert set_config(wire, topic, ("share.record.lock.duration.ms", SET, "20000")).error_code == 0
    [entry] = config_of(
        wire, topic, "share.record.lock.duration.ms", "no.such.key", version=version, include_synonyms=True
    ).configs
    of_group = 8
    assert (entry.value, entry.config_source) == ("20000", of_group)
    assert [(each.name, each.value, each.source) for each in entry.synonyms] == [
        ("share.record.lock.duration.ms", "20000", of_group),
        ("group.share.record.lock.duration.ms", "30000", DEFAULT),
    ]


def test_names_that_no_group_has_are_refused(wire: Wire) -> None:
    for name in ("", "g" * 1_025):
        assert config_of(wire, name).error_code == Code.INVALID_REQUEST
