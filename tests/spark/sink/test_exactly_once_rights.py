"""The rights of an exactly-once sink, without Spark: those that the guide names suffice, and each is necessary."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AclOperation, ResourcePatternType
from tests.harness.secured import SecuredServer, secured_server

from headrace.client import options as client_options
from headrace.client.cluster import kept
from headrace.client.errors import LoginRefused
from headrace.spark.sink import exactly_once, sink
from headrace.spark.sink.exactly_once import Driver

USER = "etl"


class Right(NamedTuple):
    """An operation on the resource of this kind that the sink has."""

    operation: AclOperation
    kind: str


# As docs/guides/spark-write.md names them.
ON_TRANSACTIONS = Right(AclOperation.WRITE, "transactional_id")
ON_GROUP = Right(AclOperation.READ, "group")
READ, WRITE = Right(AclOperation.READ, "topic"), Right(AclOperation.WRITE, "topic")
ALL = (ON_TRANSACTIONS, ON_GROUP, READ, WRITE)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with secured_server(tmp_path_factory.mktemp("secured")) as made:
        made.add_user(USER)
        yield made


@pytest.fixture(autouse=True, params=["transaction.version", "no feature of this cluster"], ids=["second", "first"])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.client.transactions._FEATURE", request.param)


def write(secured: SecuredServer, folder: Path, rights: Collection[Right]) -> str:
    """Write a batch with these rights, after an attempt that was lost, and complete it; return the topic."""
    topic, name = f"topic-{uuid4().hex}", f"sink-{uuid4().hex}"
    secured.fill(topic, 1, [])
    for operation, kind in rights:
        if kind == "transactional_id":
            secured.allow(USER, operation, pattern=ResourcePatternType.PREFIXED, transactional_id=name)
        elif kind == "group":
            secured.allow(USER, operation, group=name)
        else:
            secured.allow(USER, operation, topic=topic)
    given = {
        client_options.SERVERS: secured.server.kafka,
        client_options.PROPERTIES: str(secured.properties(folder / "login.properties", USER)),
        "topic": topic,
        "deliveryGuarantee": "exactly-once",
        "transactionalId": name,
    }
    options = sink.parse(given)
    driver, query = Driver(kept(options.kafka), topic), uuid4()
    rows = pa.RecordBatch.from_pydict({"value": ["a"]})
    lost = exactly_once.prepare(options, driver.begin(name), query, 0, iter([rows]))
    assert lost.participant is not None
    attempt = driver.begin(name)
    prepared = exactly_once.prepare(options, attempt, query, 0, iter([rows]))
    assert prepared.participant is not None
    driver.commit(attempt, 0, query, {prepared.participant: ""})
    assert driver.begin(name).done == 1
    return topic


def test_the_rights_of_the_guide_suffice(secured: SecuredServer, tmp_path: Path) -> None:
    topic = write(secured, tmp_path, ALL)
    consumer = Consumer(secured.kafka() | {"group.id": "check", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() for message in consumer.consume(1, 60)] == [b"a"]
    # An open transaction would hide the second one's record, and a committed one would show a second.
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 60)
    assert (low, high) == (0, 4)
    assert consumer.consume(1, 0.2) == []
    consumer.close()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (ON_TRANSACTIONS, "it takes Write on transactional ID 'sink-"),
        (ON_GROUP, "it takes Read on group 'sink-"),
        (READ, "it takes Read on topic 'topic-"),
        (WRITE, "it takes Write on topic 'topic-"),
    ],
    ids=lambda value: f"{value.operation.name} {value.kind}" if isinstance(value, Right) else "",
)
def test_each_right_is_necessary(secured: SecuredServer, tmp_path: Path, missing: Right, message: str) -> None:
    """Describe, which the others have in them, does not replace it."""
    rights = {*ALL, Right(AclOperation.DESCRIBE, missing.kind)} - {missing}
    with pytest.raises(LoginRefused, match=message):
        write(secured, tmp_path, rights)
