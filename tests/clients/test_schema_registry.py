"""Unmodified clients of schema registries: confluent-kafka with its serializers, kafkajs', and franz-go's."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AclOperation
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.harness import fetching
from tests.harness.secured import PASSWORD, SecuredServer, secured_server

from headrace.lakehouse.decoders.confluent import WireDecoder
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.lakehouse.decoders.schema_registry import Registry
from headrace.testing import Server, server

FIELDS = [{"name": "id", "type": "string"}, {"name": "count", "type": "int"}]
AVRO = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": FIELDS})
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "string"}, "count": {"type": "integer"}},
    }
)
LINE = 'syntax = "proto3"; package shop; message Line { int32 quantity = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "parts/line.proto";
message Other {}
message Order {
  message Inner { int32 x = 1; }
  string id = 1; int32 count = 2; google.protobuf.Timestamp at = 3; map<string, Line> lines = 4; Inner inner = 5;
}
"""
VALUE = {"id": "a", "count": 3}


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1, schema_registry_enable=True) as started:
        yield started


@pytest.fixture
def registry(running: Server) -> SchemaRegistryClient:
    """A client that has cached nothing."""
    return SchemaRegistryClient({"url": running.schema_registry})


@pytest.fixture(scope="module")
def order() -> Any:
    """The generated class of the message Order."""
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled(ORDER, "a test", {"parts/line.proto": LINE}))
    pool = descriptor_pool.Default()
    for one in files.file:
        if not one.name.startswith("google/"):
            one.name = one.name.replace("value", "order")
            pool.AddSerializedFile(one.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def round_trip(kafka: str, topic: str, write: Callable[..., bytes], read: Callable[..., Any], value: Any) -> Any:
    """Produce a value, consume it, and return what the deserializer makes of it."""
    context = SerializationContext(topic, MessageField.VALUE, [])
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, write(value, context), headers=context.headers or None)
    producer.flush(60)
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        got = SerializationContext(topic, MessageField.VALUE, message.headers())
        return read(message.value(), got)
    finally:
        consumer.close()


def other(running: Server) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": running.schema_registry})


def test_avro(running: Server, registry: SchemaRegistryClient) -> None:
    read = AvroDeserializer(other(running))
    assert round_trip(running.kafka, "avro", AvroSerializer(registry, AVRO), read, VALUE) == VALUE
    assert registry.get_latest_version("avro-value").version == 1


def test_json(running: Server, registry: SchemaRegistryClient) -> None:
    read = JSONDeserializer(None, schema_registry_client=other(running))
    assert round_trip(running.kafka, "json", JSONSerializer(JSON, registry), read, VALUE) == VALUE


@pytest.mark.parametrize("known", [True, False], ids=["known types skipped", "known types registered"])
def test_protobuf(running: Server, registry: SchemaRegistryClient, order: Any, known: bool) -> None:
    topic = f"protobuf-{known}"
    options = {"use.deprecated.format": False}
    write = ProtobufSerializer(order, registry, {**options, "skip.known.types": known})
    value = order(id="a", count=3, lines={"x": {"quantity": 2}})
    read = ProtobufDeserializer(order, options, other(running))
    assert round_trip(running.kafka, topic, write, read, value) == value
    found = registry.get_latest_version(f"{topic}-value")
    assert 'import "parts/line.proto"' in (found.schema.schema_str or "")
    names = {"parts/line.proto"} if known else {"parts/line.proto", "google/protobuf/timestamp.proto"}
    assert {one.name for one in found.schema.references or ()} == names


def test_ids_in_headers(running: Server, registry: SchemaRegistryClient) -> None:
    write = AvroSerializer(registry, AVRO, conf={"schema.id.serializer": header_schema_id_serializer})
    context = SerializationContext("headers", MessageField.VALUE, [])
    value = {**VALUE, "id": "longer"}  # the deserializer refuses values of less than six bytes
    assert not write(value, context).startswith(b"\0"), "the record itself has no ID"
    assert round_trip(running.kafka, "headers", write, AvroDeserializer(other(running)), value) == value


def test_administration(running: Server, registry: SchemaRegistryClient) -> None:
    first = registry.register_schema("admin-value", Schema(AVRO, "AVRO"))
    assert registry.get_schema(first).schema_str == json.dumps(json.loads(AVRO), separators=(",", ":"))
    assert registry.lookup_schema("admin-value", Schema(AVRO, "AVRO")).schema_id == first
    wrong = Schema('{"type":"record","name":"Order","fields":[{"name":"new","type":"int"}]}', "AVRO")
    assert not registry.test_compatibility("admin-value", wrong)
    with pytest.raises(SchemaRegistryError) as error:
        registry.register_schema("admin-value", wrong)
    assert (error.value.http_status_code, error.value.error_code) == (409, 409)
    registry.set_config("admin-value", ServerConfig(compatibility=ConfigCompatibilityLevel.NONE))
    assert registry.get_config("admin-value").compatibility_level is ConfigCompatibilityLevel.NONE
    second = registry.register_schema("admin-value", wrong)
    assert registry.get_versions("admin-value") == [1, 2]
    user = Schema('{"type":"array","items":"shop.Order"}', "AVRO", [SchemaReference("shop.Order", "admin-value", 1)])
    registry.register_schema("user-value", user)
    assert second != first
    assert registry.delete_version("admin-value", 2) == 2
    registry.delete_subject("user-value")
    registry.delete_subject("user-value", permanent=True)
    assert registry.delete_subject("admin-value") == [1]
    assert registry.delete_subject("admin-value", permanent=True) == [1, 2]
    assert "admin-value" not in registry.get_subjects()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """A server with HTTPS, SCRAM users and ACLs."""
    with secured_server(tmp_path_factory.mktemp("secured"), schema_registry_enable=True) as started:
        for name in ("jane", "eve"):
            started.add_user(name)
        yield started


def logged_in(secured: SecuredServer, name: str, password: str = PASSWORD) -> SchemaRegistryClient:
    """A client over HTTPS with basic authentication."""
    url, authority = secured.server.schema_registry, str(secured.made.authority)
    login = {"basic.auth.user.info": f"{name}:{password}"}
    return SchemaRegistryClient({"url": url, "ssl.ca.location": authority, **login})


def test_https_with_a_login_and_acls(secured: SecuredServer) -> None:
    assert secured.server.schema_registry.startswith("https://")
    schema = Schema(AVRO, "AVRO")
    secured.allow("jane", AclOperation.WRITE, topic="tls")
    jane = logged_in(secured, "jane")
    number = jane.register_schema("tls-value", schema)
    context = SerializationContext("tls", MessageField.VALUE, [])
    assert AvroSerializer(jane, AVRO, conf={"auto.register.schemas": False})(VALUE, context)[1:5] == number.to_bytes(4)
    cases: list[tuple[Callable[[SchemaRegistryClient], object], SchemaRegistryClient, int]] = [
        (lambda client: client.register_schema("other-value", schema), jane, 403),
        (lambda client: client.delete_subject("tls-value"), jane, 403),
        (lambda client: client.register_schema("tls-value", schema), logged_in(secured, "eve"), 403),
        (lambda client: client.get_subjects(), logged_in(secured, "jane", "wrong"), 401),
    ]
    for action, client, status in cases:
        with pytest.raises(SchemaRegistryError) as refused:
            action(client)
        assert refused.value.http_status_code == status
    assert logged_in(secured, "eve").get_subjects() == []
    assert jane.get_subjects() == ["tls-value"], "Write includes Describe"
    with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
        SchemaRegistryClient({"url": secured.server.schema_registry, "max.retries": 0}).get_subjects()


def test_the_archive_reads_what_clients_wrote(running: Server, registry: SchemaRegistryClient, order: Any) -> None:
    context = SerializationContext("archived", MessageField.VALUE, [])
    write = ProtobufSerializer(order, registry, {"use.deprecated.format": False})
    values = [
        AvroSerializer(registry, AVRO, conf={"subject.name.strategy": lambda *_: "archived-avro"})(VALUE, context),
        JSONSerializer(JSON, registry, conf={"subject.name.strategy": lambda *_: "archived-json"})(VALUE, context),
        write(order(id="a", count=3), context),
    ]
    for value in values:
        decoder = WireDecoder(Registry(running.schema_registry))
        decoded = decoder.decode(pa.array([value], pa.binary()), pa.schema([]))
        assert decoded.reasons == {}
        (row,) = decoded.columns.to_pylist()
        assert (row["id"], row["count"]) == ("a", 3)


@pytest.mark.npm
def test_kafkajs(running: Server, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(Path(__file__).parent / "kafkajs", folder)
    fetching.run(
        ("npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
        folder,
        each_s=300,
    )
    command = ["node", "flow.js", running.schema_registry]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"avro": VALUE, "json": VALUE, "protobuf": VALUE, "refused": 409}


@pytest.mark.go
def test_franz_go(running: Server, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    shutil.copytree(Path(__file__).parent / "franzsr", folder)
    fetching.run([*fetching.GO_BUILD, "-o", "flow", "."], folder, each_s=300)
    command = ["./flow", running.kafka, running.schema_registry]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found.pop("refused"), found.pop("unknown"), found.pop("read_only"), found.pop("gone")) == (
        409, 40403, 42205, 40401,
    )  # fmt: skip
    assert set(found.pop("types")) == {"AVRO", "JSON", "PROTOBUF"}
    assert (found.pop("versions"), found.pop("deleted"), found.pop("level")) == ([1, 2], [1, 2], "NONE")
    assert {"go-json-value", "go-proto-value", "line"} <= set(subjects := found.pop("subjects"))
    assert "go-value" not in subjects
    assert found.pop("sent") == VALUE
    assert found == dict.fromkeys(["same", "lookup", "by_id", "compatible", "incompatible", "references"], True)
