"""Clients that use older versions of the protocol, by themselves or by configuration."""

import logging
import re
from typing import Any

import confluent_kafka
import pytest
from tests.harness.clients import Client, Record
from tests.harness.clients.aio import AioKafka
from tests.harness.clients.confluent import Confluent
from tests.harness.clients.kafka_python import KafkaPython
from tests.harness.clients.kcat import Kcat
from tests.harness.wire import Wire

from headrace.testing import Server

VARIANTS: dict[str, tuple[type[Client], dict[str, Any]]] = {
    # librdkafka without ApiVersions uses the configured version.
    **{
        f"confluent-kafka as for {version}": (
            Confluent,
            {"api_version_request": False, "broker_version_fallback": version},
        )
        for version in ("0.11.0.0", "1.0.0", "2.0.0")
    },
    "confluent-kafka without waiting": (Confluent, {"fetch_wait_max_ms": 10}),
    **{
        f"kafka-python as for {version}": (KafkaPython, {"api_version": version})
        for version in ((1, 0), (2, 0), (2, 4), (2, 8), (3, 5))
    },
    "aiokafka": (AioKafka, {}),
}
DEBIANS: dict[str, dict[str, Any]] = {
    "kcat": {},
    "kcat as for 0.11": {"api_version_request": "false", "broker_version_fallback": "0.11.0.0"},
    "kcat as for 2.0": {"api_version_request": "false", "broker_version_fallback": "2.0.0"},
}


@pytest.fixture(
    params=[*VARIANTS, *(pytest.param(name, marks=pytest.mark.apt) for name in DEBIANS)],
)
def old(request: pytest.FixtureRequest, running: Server) -> Client:
    if request.param in DEBIANS:
        return Kcat(running.kafka, **DEBIANS[request.param])
    make, settings = VARIANTS[request.param]
    return make(running.kafka, **settings)


def test_an_old_client_produces_and_reads(old: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    sent = [Record(key=b"k", value=b"%d" % number, headers=(("h", b"v"),)) for number in range(100)]
    old.send(topic, sent, codec="gzip")
    assert [(one.key, one.value, one.headers) for one in old.read(topic, 100)] == [
        (one.key, one.value, one.headers) for one in sent
    ]


def test_an_old_client_in_a_group(old: Client, wire: Wire, topic: str) -> None:
    wire.create(topic)
    old.send(topic, [Record(value=b"%d" % number) for number in range(10)])
    with old.member(topic, topic) as member:
        found: list[bytes | None] = []
        while len(found) < 10:
            found += [one.value for one in member.poll(1)]
        member.commit()
    assert found == [b"%d" % number for number in range(10)]
    assert wire.committed(topic, topic) == 10


def test_librdkafka_reads_topics_by_id(
    running: Server, topic: str, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Its Fetch requests are of a version without names; its Produce requests name leaders in their responses."""
    wire.create(topic)
    caplog.set_level(logging.DEBUG, "librdkafka")
    common = {"bootstrap.servers": running.kafka, "debug": "protocol", "log_level": 7}
    logger = logging.getLogger("librdkafka")
    producer = confluent_kafka.Producer(common, logger=logger)
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    settings = common | {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings, logger=logger)
    consumer.subscribe([topic])
    record = consumer.poll(30)
    consumer.close()
    assert record is not None
    assert record.value() == b"x"
    producer.poll(0)
    sent = re.findall(r"Sent (\w+)Request \(v(\d+)", "\n".join(caplog.messages))
    versions = {
        api: {int(version) for name, version in sent if name == api} for api in ("Produce", "Fetch", "Metadata")
    }
    assert min(versions["Fetch"]) >= 13
    assert min(versions["Produce"]) >= 10
    assert max(versions["Metadata"]) >= 13
