"""Headrace, and Apache Kafka in the lane that has it (`make test LANE=kafka`), each started once.

KAFKA_BOOTSTRAP=HOST:PORT takes a Kafka that runs already, with the settings below.
"""

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from tests.harness.apache_kafka import apache_kafka
from tests.harness.wire import Wire, batch
from tests.kafka.agreement.cases import HEADRACE, KAFKA
from tests.kafka.agreement.consumer_group import PARTITIONS

from headrace.kafka.errors import Code
from headrace.protocol import messages as m
from headrace.testing import server

SETTINGS = {
    "allow.everyone.if.no.acl.found": "true",
    "group.consumer.max.size": "3",
    "group.share.max.size": "3",
    "group.share.max.share.sessions": "20",
    "group.share.min.record.lock.duration.ms": "1000",
    # A target is computed when something changes, so that no case waits for it.
    "group.consumer.assignment.interval.ms": "0",
    "group.share.assignment.interval.ms": "0",
}
OF_KAFKA = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
_READY_S = 60


class Either(NamedTuple):
    """One of the servers."""

    name: str
    address: str
    topic: str
    """With four partitions, each of ten batches of one record."""
    topic_id: UUID
    secret: str
    """A topic that clients may not describe."""


@pytest.fixture(scope="session")
def headrace() -> Iterator[Either]:
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with server(authorizer_class_name=OF_KAFKA["authorizer.class.name"], **settings) as started:
        yield _prepared(HEADRACE, started.kafka)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Either]:
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        yield _prepared(KAFKA, given)
        return
    settings = [f"{name}={value}" for name, value in {**SETTINGS, **OF_KAFKA}.items()]
    with apache_kafka(tmp_path_factory.mktemp("kafka"), settings) as started:
        yield _prepared(KAFKA, started.plain)


@pytest.fixture(params=[HEADRACE, pytest.param(KAFKA, marks=[pytest.mark.maven, pytest.mark.timeout(600)])])
def either(request: pytest.FixtureRequest) -> Either:
    """Each server in turn."""
    found: Either = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def wire(either: Either) -> Iterator[Wire]:
    with Wire(either.address) as client:
        yield client


@pytest.fixture
def other(either: Either) -> Iterator[Wire]:
    with Wire(either.address) as client:
        yield client


def _prepared(name: str, address: str) -> Either:
    with Wire(address) as wire:
        ending = uuid4().hex[:8]
        # The records are old.
        topic = wire.create(f"flights-{ending}", PARTITIONS, retention_ms=-1)
        secret = wire.create(f"secret-{ending}")
        for partition in range(PARTITIONS):
            for number in range(10):
                _produce(wire, topic, partition, b"%d" % number)
        # No one may describe it.
        rule = m.CreateAclsRequest.AclCreation(
            resource_type=2,
            resource_name=secret,
            resource_pattern_type=3,
            principal="User:ANONYMOUS",
            host="*",
            operation=8,
            permission_type=2,
        )
        [made] = wire.ask(m.CreateAclsRequest(creations=[rule]), 3).results
        assert made.error_code == 0, made
        _find_coordinator(wire)
        return Either(name, address, topic, wire.topic_id(topic), secret)


def _produce(wire: Wire, topic: str, partition: int, value: bytes) -> None:
    """Kafka's leaders begin after the topic was created."""
    deadline = time.monotonic() + _READY_S
    while (error := wire.produce(topic, batch(value), partition=partition).error_code) != Code.NONE:
        assert time.monotonic() < deadline, error
        time.sleep(0.05)


def _find_coordinator(wire: Wire) -> None:
    """Kafka creates its topics for groups when a client first asks for a coordinator."""
    deadline = time.monotonic() + _READY_S
    find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["first"])
    describe = m.ConsumerGroupDescribeRequest(group_ids=["first"])
    while True:
        [found] = wire.ask(find, 5).coordinators
        [group] = wire.ask(describe, 1).groups
        if (found.error_code, group.error_code) == (Code.NONE, Code.GROUP_ID_NOT_FOUND):
            return
        assert time.monotonic() < deadline, (found, group)
        time.sleep(0.1)
