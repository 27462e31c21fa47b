"""IncrementalAlterConfigs: keys are set, deleted, appended to and subtracted from (KIP-339)."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.config_requests import config_of, set_config
from tests.kafka.topic_requests import BROKER, TOPIC, value

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.protocol.messages import (
    IncrementalAlterConfigsRequest,
)

SET, DELETE, APPEND, SUBTRACT = range(4)


def alter(wire: Wire, name: str, *changes: tuple[str, int, str | None], kind: int = TOPIC, dry: bool = False) -> int:
    """The error code of changing a configuration."""
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=configs
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry), 1)
    code: int = answer.responses[0].error_code
    assert (answer.responses[0].error_message is None) == (code == 0)
    return code


def _told(wire: Wire, name: str, key: str, text: str, version: int) -> str:
    """The error message of setting a key of a topic, in a version."""
    changed = IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=SET, value=text)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=TOPIC, resource_name=name, configs=[changed]
    )
    answer = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), version)
    return str(answer.responses[0].error_message)


def test_a_configuration_is_set_and_deleted_again(wire: Wire, topic: str) -> None:
    wire.create(topic)
    assert alter(wire, topic, ("retention.ms", SET, "60000"), ("max.message.bytes", SET, "2000")) == 0
    assert (value(wire, topic, "retention.ms"), value(wire, topic, "max.message.bytes")) == ("60000", "2000")
    assert wire.produce(topic, batch(b"x" * 3000)).error_code == Code.MESSAGE_TOO_LARGE
    assert alter(wire, topic, ("max.message.bytes", DELETE, None)) == 0
    assert value(wire, topic, "retention.ms") == "60000", "the other one stays"
    assert wire.produce(topic, batch(b"x" * 3000)).error_code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("retention.ms", SET, "soon")], Code.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("no.such.key", SET, "1")], Code.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], Code.INVALID_CONFIG),
        ([("headrace.adopted", SET, "0")], Code.INVALID_CONFIG),
        ([("retention.ms", SET, None)], Code.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], Code.INVALID_REQUEST),
    ],
)
def test_a_change_that_is_refused_changes_nothing(
    wire: Wire, topic: str, changes: list[tuple[str, int, str | None]], code: Code
) -> None:
    wire.create(topic, retention_ms=5)
    assert alter(wire, topic, *changes) == code
    assert value(wire, topic, "retention.ms") == "5"


def test_items_are_added_to_lists_and_taken_from_them(wire: Wire, topic: str) -> None:
    wire.create(topic)
    key = "cleanup.policy"
    assert alter(wire, topic, (key, APPEND, "delete")) == 0
    assert value(wire, topic, key) == "delete", "once is enough"
    assert alter(wire, topic, (key, APPEND, "shrink")) == Code.INVALID_CONFIG
    assert alter(wire, topic, (key, APPEND, "compact")) == 0
    assert value(wire, topic, key) == "delete,compact"
    assert alter(wire, topic, (key, SUBTRACT, "compact")) == 0
    assert alter(wire, topic, (key, SUBTRACT, "delete")) == 0
    assert value(wire, topic, key) == "", "there may be none, since Kafka 4.1"
    assert alter(wire, topic, (key, SET, ",")) == Code.INVALID_CONFIG
    assert alter(wire, topic, (key, APPEND, "delete")) == 0
    assert value(wire, topic, key) == "delete"
    assert alter(wire, topic, (key, 9, "x")) == Code.INVALID_REQUEST


def test_a_value_that_is_much_too_long_is_refused_at_once(wire: Wire, topic: str) -> None:
    """Appending a list to a list, or subtracting one, blocked the server for hours."""
    wire.create(topic)
    long = ",".join(["delete"] * 100_000)
    for operation in (SET, APPEND, SUBTRACT):
        assert alter(wire, topic, ("cleanup.policy", operation, long)) == Code.INVALID_CONFIG
    assert alter(wire, topic, ("retention.ms", SET, " " * 5_000 + "1")) == Code.INVALID_CONFIG


@pytest.mark.parametrize("version", [0, 1])
def test_a_message_about_a_long_value_fits_into_its_version(wire: Wire, topic: str, version: int) -> None:
    """A string of version 0 has room for 32 767 bytes; the connection was closed."""
    wire.create(topic)
    assert "retention.ms" in _told(wire, topic, "retention.ms", "x" * 1_000, version)
    assert "unknown topic configuration" in _told(wire, topic, "\x7f" * 30_000, "1", version)


def test_what_only_adoption_sets_is_not_given(wire: Wire) -> None:
    with pytest.raises(AssertionError, match="only adoption sets it"):
        wire.create("given", headrace_storage="native", headrace_adopted="x")


def test_a_change_can_be_tried(wire: Wire, topic: str) -> None:
    wire.create(topic, retention_ms=5)
    assert alter(wire, topic, ("retention.ms", SET, "6"), dry=True) == 0
    assert alter(wire, topic, ("retention.ms", SET, "x"), dry=True) == Code.INVALID_CONFIG
    assert value(wire, topic, "retention.ms") == "5"


def test_unknown_and_invalid_resources_are_not_changed(wire: Wire) -> None:
    assert alter(wire, "1", ("log.retention.ms", SET, "1"), kind=BROKER) == Code.INVALID_REQUEST
    assert alter(wire, "x", ("a", SET, "1"), kind=9) == Code.INVALID_REQUEST
    assert alter(wire, "missing", ("retention.ms", SET, "1")) == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_throttles_can_be_removed_where_there_are_none(wire: Wire, topic: str) -> None:
    """`kafka-reassign-partitions --verify` does so."""
    wire.create(topic)
    request = m.IncrementalAlterConfigsRequest
    delete = 1

    def removed(kind: int, name: str, key: str, operation: int = delete) -> int:
        config = request.AlterableConfig(name=key, config_operation=operation, value="1")
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        return int(wire.ask(request(resources=[resource]), 1).responses[0].error_code)

    assert removed(4, "1", "leader.replication.throttled.rate") == Code.NONE
    assert removed(2, topic, "follower.replication.throttled.replicas") == Code.NONE
    assert removed(4, "1", "leader.replication.throttled.rate", operation=0) == Code.INVALID_REQUEST


def test_a_group_gets_a_configuration_before_it_exists(wire: Wire, topic: str) -> None:
    session, interval = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    assert set_config(wire, topic, (session, SET, "50000"), (interval, SET, "6000")).error_code == 0
    assert set_config(wire, topic, (session, SET, "51000"), dry=True).error_code == 0
    assert (
        set_config(wire, topic, (interval, DELETE, None), ("share.delivery.count.limit", DELETE, None)).error_code == 0
    )
    assert {each.name: each.value for each in config_of(wire, topic, session, interval).configs} == {
        session: "50000",
        interval: "5000",
    }


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([("foo.bar", SET, "1")], Code.INVALID_CONFIG, "Unknown group config name: foo.bar"),
        (
            [("consumer.session.timeout.ms", SET, "46000"), ("consumer.heartbeat.interval.ms", SET, "1000")],
            Code.INVALID_CONFIG,
            "consumer.heartbeat.interval.ms must be greater than or equal to group.consumer.min.heartbeat.interval.ms",
        ),
        ([("share.auto.offset.reset", SET, "by_duration:-PT1H")], Code.INVALID_CONFIG, "not negative"),
        ([("share.isolation.level", APPEND, "read_committed")], Code.INVALID_CONFIG, "is no list"),
        ([("share.isolation.level", SET, None)], Code.INVALID_REQUEST, "has no value"),
        ([("share.session.timeout.ms", SET, " " * 5_000)], Code.INVALID_CONFIG, "at most 1024 characters"),
        ([("\x7f" * 30_000, SET, "1")], Code.INVALID_CONFIG, "Unknown group config name"),
    ],
)
def test_what_a_group_cannot_have_is_refused_as_kafka_does(
    wire: Wire, topic: str, changes: list[tuple[str, int, str | None]], code: Code, message: str
) -> None:
    result = set_config(wire, topic, *changes)
    assert result.error_code == code
    assert message in result.error_message
    assert {each.config_source for each in config_of(wire, topic).configs} == {5}


def test_a_group_with_a_configuration_has_a_name_of_limited_length(wire: Wire) -> None:
    for name in ("", "g" * 1_025):
        result = set_config(wire, name, ("share.session.timeout.ms", SET, "50000"))
        assert result.error_code == Code.INVALID_REQUEST


def test_members_get_the_interval_of_their_group(wire: Wire, topic: str) -> None:
    wire.create(topic)
    request = m.ConsumerGroupHeartbeatRequest
    joining = request(
        group_id=topic, member_id="A", member_epoch=0,
        rebalance_timeout_ms=60_000, subscribed_topic_names=[topic], topic_partitions=[],
    )  # fmt: skip
    joined = wire.ask(joining, 1)
    assert (joined.error_code, joined.heartbeat_interval_ms) == (0, 300)
    beat = request(group_id=topic, member_id="A", member_epoch=joined.member_epoch)
    key = "consumer.heartbeat.interval.ms"
    assert set_config(wire, topic, (key, SET, "6000")).error_code == 0
    assert wire.ask(beat, 1).heartbeat_interval_ms == 6_000
    assert set_config(wire, topic, (key, DELETE, None)).error_code == 0
    assert wire.ask(beat, 1).heartbeat_interval_ms == 300
