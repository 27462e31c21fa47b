"""Clients that use older versions of the protocol, by themselves or by configuration."""

from typing import Any

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
