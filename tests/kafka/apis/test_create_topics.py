"""CreateTopics: names, versions, what is refused, and what validate_only leaves."""

import pytest
from tests.harness.wire import Wire, batch
from tests.kafka.topic_requests import described

from headrace.kafka.errors import Code
from headrace.protocol.messages import (
    CreateTopicsRequest,
)
from headrace.testing import Server

WRONG_NAMES = ["", ".", "..", "a b", "a/b", "ä", "a:b", "x" * 250]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_invalid_names(wire: Wire, running: Server, name: str) -> None:
    assert described(wire, name, create=True) == (Code.INVALID_TOPIC_EXCEPTION, 0)
    assert described(wire, name) == (Code.INVALID_TOPIC_EXCEPTION, 0)
    asked = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1_000), 7)
    assert answer.topics[0].error_code == Code.INVALID_TOPIC_EXCEPTION
    assert answer.topics[0].error_message
    assert wire.produce(name, batch(b"x")).error_code in {
        Code.INVALID_TOPIC_EXCEPTION,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_valid_names(wire: Wire, name: str) -> None:
    assert described(wire, name, create=True) == (0, 1)


@pytest.mark.parametrize("version", range(2, 8))
def test_versions_of_create_topics(wire: Wire, topic: str, version: int) -> None:
    asked = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
    answer = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1_000), version)
    [found] = answer.topics
    assert (found.name, found.error_code) == (topic, 0)
    if version >= 5:
        assert (found.num_partitions, found.replication_factor) == (2, 1)
        assert found.configs, "Java's admin client cannot bear null here"
    if version >= 7:
        assert found.topic_id == wire.metadata(topic).topics[0].topic_id
    assert described(wire, topic) == (0, 2)
    again = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1_000), version).topics[0]
    assert again.error_code == Code.TOPIC_ALREADY_EXISTS
    if version >= 5:
        assert again.configs is not None


def test_validate_only_creates_nothing(wire: Wire, topic: str) -> None:
    asked = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
    answer = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1_000, validate_only=True), 7)
    assert answer.topics[0].error_code == 0
    assert described(wire, topic) == (Code.UNKNOWN_TOPIC_OR_PARTITION, 0)


@pytest.mark.parametrize(
    ("partitions", "replicas", "configs", "code"),
    [
        (0, 1, {}, Code.INVALID_PARTITIONS),
        (-2, 1, {}, Code.INVALID_PARTITIONS),
        (1, 3, {}, Code.INVALID_REPLICATION_FACTOR),
        (1, 0, {}, Code.INVALID_REPLICATION_FACTOR),
        (1, 1, {"retention.ms": "soon"}, Code.INVALID_CONFIG),
        (1, 1, {"no.such.key": "1"}, Code.INVALID_CONFIG),
        (-1, -1, {"retention.ms": "1000"}, 0),
    ],
)
def test_what_create_topics_refuses(
    wire: Wire, topic: str, partitions: int, replicas: int, configs: dict[str, str], code: int
) -> None:
    asked = CreateTopicsRequest.CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreateTopicsRequest.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    answer = wire.ask(CreateTopicsRequest(topics=[asked], timeout_ms=1_000), 7)
    assert answer.topics[0].error_code == code, answer
    assert (described(wire, topic)[0] == 0) == (code == 0)
