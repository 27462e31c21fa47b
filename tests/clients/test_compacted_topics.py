"""Compacted topics with real clients: a record without a key is rejected by name, records with keys are stored."""

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.errors import KafkaError
from tests.harness.clients.admin import Admin
from tests.harness.clients.confluent_admin import ConfluentAdmin
from tests.harness.clients.kafka_python_admin import KafkaPythonAdmin

from headrace.kafka.errors import Code
from headrace.testing import Server
from kafka import KafkaProducer

ADMINS: dict[str, type[ConfluentAdmin] | type[KafkaPythonAdmin]] = {
    "confluent-kafka": ConfluentAdmin,
    "kafka-python": KafkaPythonAdmin,
}
AS_ANOTHER = -138
"""An invalid record in the same batch caused the failure. librdkafka reports it if several records are listed."""
REASON = "Compacted topic cannot accept message without key in topic partition {}-0."


@pytest.fixture(params=sorted(ADMINS))
def compacted(request: pytest.FixtureRequest, running: Server, topic: str) -> str:
    with ADMINS[request.param](running.kafka) as made:
        admin: Admin = made
        admin.create(topic, 1, {"cleanup.policy": "compact"})
        assert admin.configs(topic)["cleanup.policy"] == "compact"
    return topic


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_kafka_python_gets_the_reason(running: Server, compacted: str, codec: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=running.kafka,
        compression_type=None if codec == "none" else codec,
        # Otherwise the error is fatal for the producer.
        enable_idempotence=False,
        linger_ms=200,
    )
    try:
        kept = producer.send(compacted, b"v", b"k")
        assert kept.get(30).offset == 0
        good, bad = producer.send(compacted, b"v", b"k"), producer.send(compacted, b"v")
        with pytest.raises(KafkaError) as caught:
            bad.get(30)
        assert REASON.format(compacted) in str(caught.value)
        with pytest.raises(KafkaError):
            good.get(30)
        assert producer.send(compacted, b"v", b"k").get(30).offset == 1
    finally:
        producer.close()


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_librdkafka_reports_which_record_of_a_batch_is_rejected(running: Server, compacted: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": running.kafka, "linger.ms": 500, "compression.type": codec}
    )
    told: dict[bytes | None, confluent_kafka.KafkaError | None] = {}
    for value, key in ((b"first", b"k"), (b"keyless", None), (b"last", b"k"), (b"another", None)):
        producer.produce(
            compacted, value, key, partition=0, on_delivery=lambda error, sent: told.update({sent.value(): error})
        )
    # flush() sends at once, perhaps in two batches.
    until = time.monotonic() + 60
    while len(told) < 4:
        producer.poll(1)
        assert time.monotonic() < until
    codes = {value: None if error is None else error.code() for value, error in told.items()}
    assert codes[b"keyless"] == codes[b"another"] == Code.INVALID_RECORD
    assert codes[b"first"] == codes[b"last"] == AS_ANOTHER


def test_the_policy_can_be_changed(running: Server, topic: str) -> None:
    with ConfluentAdmin(running.kafka) as admin:
        admin.create(topic, 1, {"cleanup.policy": "compact,delete"})
        assert admin.configs(topic)["cleanup.policy"] == "compact,delete"
    client = AdminClient({"bootstrap.servers": running.kafka})
    for policy in ("delete", "compact"):
        change = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        [future] = client.incremental_alter_configs(
            [ConfigResource("topic", topic, incremental_configs=[change])]
        ).values()
        future.result(30)
        with ConfluentAdmin(running.kafka) as admin:
            assert admin.configs(topic)["cleanup.policy"] == policy
