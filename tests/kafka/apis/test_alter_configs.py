"""AlterConfigs: a configuration is replaced as a whole."""

import pytest
from tests.harness.wire import Wire
from tests.kafka.config_requests import GROUP, config_of
from tests.kafka.topic_requests import BROKER, TOPIC, value

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    AlterConfigsRequest,
)


def replace(wire: Wire, name: str, *given: tuple[str, str | None], kind: int = TOPIC, dry: bool = False) -> int:
    """The error code of replacing a configuration."""
    configs = [AlterConfigsRequest.AlterableConfig(name=key, value=text) for key, text in given]
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = wire.ask(AlterConfigsRequest(resources=[resource], validate_only=dry), 2)
    code: int = answer.responses[0].error_code
    assert (answer.responses[0].error_message is None) == (code == 0)
    return code


def test_a_configuration_is_replaced_as_a_whole(wire: Wire, topic: str) -> None:
    wire.create(topic, retention_ms=5, max_message_bytes=2000)
    assert replace(wire, topic, ("max.message.bytes", "3000"), dry=True) == 0
    assert value(wire, topic, "max.message.bytes") == "2000", "that was a trial"
    assert replace(wire, topic, ("max.message.bytes", "3000")) == 0
    assert value(wire, topic, "max.message.bytes") == "3000"
    assert value(wire, topic, "retention.ms") == "604800000", "what is left out is the default again"
    assert replace(wire, topic) == 0
    assert value(wire, topic, "max.message.bytes") == "1048588"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([("retention.ms", "soon")], Code.INVALID_CONFIG),
        ([("no.such.key", "1")], Code.INVALID_CONFIG),
        ([("headrace.storage", "native")], Code.INVALID_CONFIG),
        ([("retention.ms", None)], Code.INVALID_REQUEST),
        ([("retention.ms", "1"), ("retention.ms", "2")], Code.INVALID_REQUEST),
    ],
)
def test_a_replacement_that_is_refused_changes_nothing(
    wire: Wire, topic: str, given: list[tuple[str, str | None]], code: Code
) -> None:
    wire.create(topic, retention_ms=5)
    assert replace(wire, topic, *given) == code
    assert value(wire, topic, "retention.ms") == "5"


def test_a_replacement_leaves_what_cannot_be_changed(wire: Wire, topic: str) -> None:
    wire.create(topic, headrace_storage="native", offset_sequence_bits=12, retention_ms=5)
    assert replace(wire, topic, ("retention.ms", "6")) == 0
    assert value(wire, topic, "headrace.storage") == "native"
    assert value(wire, topic, "offset.sequence.bits") == "12"
    assert value(wire, topic, "retention.ms") == "6"


def test_only_a_topic_that_is_there_has_its_configuration_replaced(wire: Wire) -> None:
    assert replace(wire, "1", ("log.retention.ms", "1"), kind=BROKER) == Code.INVALID_REQUEST
    assert replace(wire, "x", ("a", "1"), kind=9) == Code.INVALID_REQUEST
    assert replace(wire, "missing", ("retention.ms", "1")) == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_the_configuration_of_a_group_is_replaced_as_a_whole(wire: Wire, topic: str) -> None:
    session, interval = "share.session.timeout.ms", "share.heartbeat.interval.ms"
    assert replace(wire, topic, (session, "50000"), kind=GROUP) == 0
    assert replace(wire, topic, (interval, "7000"), kind=GROUP) == 0
    found = {each.name: each.value for each in config_of(wire, topic, session, interval).configs}
    assert found == {session: "45000", interval: "7000"}
    assert replace(wire, topic, (interval, "20000"), kind=GROUP) == Code.INVALID_CONFIG
    assert replace(wire, topic, ("retention.ms", "1"), kind=GROUP) == Code.INVALID_CONFIG
    assert replace(wire, topic, kind=GROUP) == 0
    assert {each.config_source for each in config_of(wire, topic).configs} == {5}
