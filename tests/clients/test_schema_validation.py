"""Topics that validate schemas, with confluent-kafka's serializers and with clients that know no schemas."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka.errors import InvalidRecordError, KafkaError

from headrace.kafka.errors import Code
from headrace.testing import Server, server
from kafka import KafkaProducer

FIELDS = [{"name": "id", "type": "string"}, {"name": "count", "type": "int"}]
ORDER = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS})
LINE = json.dumps({"type": "record", "name": "Line", "namespace": "shop", "fields": FIELDS})
TITLED = json.dumps(
    {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Parcel", "type": "object", "properties": {}}
)
VALUE = {"id": "a", "count": 3}
VALIDATION = "confluent.value.schema.validation"
STRATEGY = "confluent.value.subject.name.strategy"
CLASSES = "io.confluent.kafka.serializers.subject"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1, schema_registry_enable=True) as started:
        yield started


@pytest.fixture
def registry(running: Server) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": running.schema_registry})


def create(address: str, topic: str, **config: str) -> None:
    given = {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": address})
    [future] = admin.create_topics([NewTopic(topic, 1, 1, config=given)]).values()
    future.result(30)


def sent(address: str, topic: str, value: bytes | None, headers: Any = None, key: bytes | None = b"k") -> int | None:
    """The error code of a record."""
    told: list[int | None] = []
    producer = Producer({"bootstrap.servers": address})
    producer.produce(
        topic, value, key, headers=headers, on_delivery=lambda error, _: told.append(error.code() if error else None)
    )
    assert producer.flush(60) == 0
    return told[0]


def test_values_of_the_serializer_are_accepted_and_plain_ones_rejected(
    running: Server, registry: SchemaRegistryClient
) -> None:
    create(running.kafka, "orders", confluent_value_schema_validation="true")
    context = SerializationContext("orders", MessageField.VALUE)
    good = AvroSerializer(registry, ORDER)(VALUE, context)
    assert sent(running.kafka, "orders", good) is None
    assert sent(running.kafka, "orders", None) is None, "a tombstone"
    assert sent(running.kafka, "orders", good, key=b"any key") is None
    for bad in (b"plain", b"", b"\0\0\0\0", b"\0\0\0\x7f\x7frest"):
        assert sent(running.kafka, "orders", bad) == Code.INVALID_RECORD


def test_the_index_of_the_record_and_the_reason_are_returned(running: Server, registry: SchemaRegistryClient) -> None:
    create(running.kafka, "indexed", confluent_value_schema_validation="true")
    good = AvroSerializer(registry, ORDER)(VALUE, SerializationContext("indexed", MessageField.VALUE))
    producer = KafkaProducer(bootstrap_servers=running.kafka, enable_idempotence=False, linger_ms=500)
    try:
        producer.partitions_for("indexed")
        futures = [producer.send("indexed", value) for value in (good, b"plain", good)]
        with pytest.raises(InvalidRecordError, match="The value has no valid schema ID"):
            futures[1].get(30)
        with pytest.raises(KafkaError, match="part of a batch"):
            futures[0].get(30)
        assert producer.send("indexed", good).get(30).offset == 0
    finally:
        producer.close()


def test_an_id_of_another_topic_is_rejected(running: Server, registry: SchemaRegistryClient) -> None:
    create(running.kafka, "mine", confluent_value_schema_validation="true")
    create(running.kafka, "yours", confluent_value_schema_validation="true")
    value = AvroSerializer(registry, LINE)(VALUE, SerializationContext("yours", MessageField.VALUE))
    assert sent(running.kafka, "yours", value) is None
    assert sent(running.kafka, "mine", value) == Code.INVALID_RECORD


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        (f"{CLASSES}.RecordNameStrategy", record_subject_name_strategy),
        ("TopicRecordNameStrategy", topic_record_subject_name_strategy),
    ],
)
def test_subjects_by_record_name(running: Server, registry: SchemaRegistryClient, name: str, strategy: Any) -> None:
    topic = f"by-{name.rpartition('.')[2]}"
    create(running.kafka, topic, **{VALIDATION: "true", STRATEGY: name})
    context = SerializationContext(topic, MessageField.VALUE)
    avro = AvroSerializer(registry, ORDER, conf={"subject.name.strategy": strategy})(VALUE, context)
    assert sent(running.kafka, topic, avro) is None
    assert sent(running.kafka, topic, avro) is None
    json_ = JSONSerializer(TITLED, registry, conf={"subject.name.strategy": strategy})({}, context)
    assert sent(running.kafka, topic, json_) is None
    wrong = AvroSerializer(registry, LINE)(VALUE, context)
    assert sent(running.kafka, topic, wrong) == Code.INVALID_RECORD


def test_schemas_in_headers(running: Server, registry: SchemaRegistryClient) -> None:
    create(running.kafka, "headers", confluent_value_schema_validation="true")
    context = SerializationContext("headers", MessageField.VALUE, [])
    value = AvroSerializer(registry, ORDER, conf={"schema.id.serializer": header_schema_id_serializer})(VALUE, context)
    assert sent(running.kafka, "headers", value, context.headers) is None
    assert sent(running.kafka, "headers", value) == Code.INVALID_RECORD
    assert sent(running.kafka, "headers", value, [("__value_schema_id", b"\1" + bytes(16))]) == Code.INVALID_RECORD


def test_keys_are_validated_on_their_own(running: Server, registry: SchemaRegistryClient) -> None:
    create(running.kafka, "keys", confluent_key_schema_validation="true")
    key = AvroSerializer(registry, ORDER)(VALUE, SerializationContext("keys", MessageField.KEY))
    assert sent(running.kafka, "keys", b"plain", key=key) is None
    assert sent(running.kafka, "keys", b"plain", key=None) is None
    assert sent(running.kafka, "keys", b"plain", key=b"plain") == Code.INVALID_RECORD


def test_a_deleted_schema_is_rejected(running: Server, registry: SchemaRegistryClient) -> None:
    create(running.kafka, "deleted", confluent_value_schema_validation="true")
    value = AvroSerializer(registry, ORDER)(VALUE, SerializationContext("deleted", MessageField.VALUE))
    assert sent(running.kafka, "deleted", value) is None
    registry.delete_subject("deleted-value")
    assert sent(running.kafka, "deleted", value) == Code.INVALID_RECORD


def test_validation_can_be_switched_on_and_off(running: Server) -> None:
    create(running.kafka, "switched")
    admin = AdminClient({"bootstrap.servers": running.kafka})
    for value, code in (("true", Code.INVALID_RECORD), ("false", None)):
        change = ConfigEntry(VALIDATION, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", "switched", incremental_configs=[change])
        [future] = admin.incremental_alter_configs([resource]).values()
        future.result(30)
        [described] = admin.describe_configs([ConfigResource("topic", "switched")]).values()
        found = described.result(30)
        assert found[VALIDATION].value == value
        assert found[STRATEGY].value == f"{CLASSES}.TopicNameStrategy"
        assert sent(running.kafka, "switched", b"plain") == code


def test_a_server_without_registry_refuses_the_setting() -> None:
    with server(num_partitions=1) as other:
        with pytest.raises(KafkaException, match=r"set schema\.registry\.enable=true") as caught:
            create(other.kafka, "t", confluent_value_schema_validation="true")
        assert caught.value.args[0].code() == Code.INVALID_CONFIG
        with pytest.raises(KafkaException, match="strategy"):
            create(other.kafka, "t", **{STRATEGY: "io.example.Strategy"})
