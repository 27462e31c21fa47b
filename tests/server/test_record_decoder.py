"""The console decodes keys and values of unmodified serializers, searches in them, and says why it cannot."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.console.visiting import ask, create, safe
from tests.harness.wire import Wire

from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.protocol.messages import CreateAclsRequest
from headrace.testing import InProcessServer

FIELDS: list[dict[str, Any]] = [
    {"name": "key", "type": "string"},
    {"name": "value", "type": ["null", "long"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
]
AVRO = {"type": "record", "name": "Order", "fields": FIELDS}
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "string"}}})
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "part.proto";
message Other {}
message Sent { string key = 1; google.protobuf.Timestamp at = 2; Part value = 3; }
"""
PART = 'syntax = "proto3"; package shop; message Part { int64 count = 1; }'


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(schema_registry_enable=True) as started:
        yield started


def sent(server: InProcessServer, topic: str, value: bytes, key: bytes | None = None, headers: Any = None) -> None:
    producer = Producer({"bootstrap.servers": server.kafka})
    producer.produce(topic, value, key, 0, headers=headers or None)
    assert producer.flush(60) == 0


def downloaded(server: InProcessServer, topic: str, query: str = "") -> list[dict[str, Any]]:
    body = ask(server, f"/topics/{topic}/records?download=jsonl&{query}").body
    return [json.loads(line) for line in body.decode().splitlines()]


def registered(server: InProcessServer, subject: str, schema: str, kind: str = "AVRO", **more: Any) -> int:
    """Return the ID of a new schema."""
    body = json.dumps({"schema": schema, "schemaType": kind, **more})
    answer = ask(server, f"/registry/subjects/{subject}/versions", "POST", body, content_type="application/json")
    assert answer.status == 200, answer.body
    return int(json.loads(answer.body)["id"])


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def prefixed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


def test_avro_values_and_keys_are_shown_and_found(server: InProcessServer) -> None:
    create(server, ("avro", 2))
    number = registered(server, "avro-value", json.dumps(AVRO))
    name = registered(server, "avro-key", '"string"')
    value = {
        "key": "caf\u00e9",
        "value": 5,
        "at": datetime.fromtimestamp(1_700_000_000, UTC),
        "price": Decimal("12.34"),
    }
    encoded = prefixed(number, avro(AVRO, value))
    sent(server, "avro", encoded, prefixed(name, avro("string", "number-1")))
    sent(server, "avro", b"\0\0\0\xff\xffhello")
    sent(server, "avro", encoded[:-3])
    first, unknown, short = downloaded(server, "avro")
    shown = {"key": "caf\u00e9", "value": 5, "at": "2023-11-14T22:13:20Z", "price": 12.34}
    assert json.loads(first["value_decoded"]) == shown
    assert first["key_decoded"] == '"number-1"'
    assert first["value_schema"] == f"Avro, schema {number}"
    assert unknown["value_fault"] == "there is no schema of id 65535"
    assert short["value_fault"].startswith("not a value of this schema")
    assert "value_decoded" in short
    assert short["value_decoded"] is None
    assert "value" in short or "value_base64" in short, "the raw bytes stay"

    def found(query: str) -> list[int]:
        return [line["offset"] for line in downloaded(server, "avro", query)]

    assert found("q=2023-11-14T22") == [0]
    assert found("q=12.34&field=price") == [0]
    assert found("key=%22number-1%22") == [0]
    assert found("q=hello") == [1]
    page = safe(ask(server, "/topics/avro/records?partition=0&show=0"))
    assert f'data-tab="Avro, schema {number}"' in page
    assert "2023-11-14T22:13:20Z" in page
    broken = ask(server, "/topics/avro/records?partition=0&show=2").text
    assert "not a value of this schema" in broken
    assert "00000000 00 00 00 00" in broken


def test_json_protobuf_and_ids_in_headers(server: InProcessServer) -> None:
    create(server, ("mixed", 1))
    number = registered(server, "mixed-json", JSON, "JSON")
    sent(server, "mixed", prefixed(number, b'{"id": "a", "more": [1.50]}'))
    registered(server, "part", PART, "PROTOBUF")
    references = [{"name": "part.proto", "subject": "part", "version": 1}]
    number = registered(server, "mixed-proto", PROTO, "PROTOBUF", references=references)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(PROTO, "a test", {"part.proto": PART})).file:
        pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Sent"))(key="k")
    message.value.count = 1 << 60
    message.at.FromSeconds(1_700_000_000)
    sent(server, "mixed", prefixed(number, b"\2\2" + message.SerializeToString()))
    schema = {"type": "record", "name": "Small", "fields": [{"name": "n", "type": "int"}]}
    number = registered(server, "mixed-value", json.dumps(schema))
    guid = UUID(json.loads(ask(server, f"/registry/schemas/ids/{number}").body)["guid"])
    sent(server, "mixed", avro(schema, {"n": 7}), headers=[("__value_schema_id", b"\1" + guid.bytes)])
    document, proto, header = downloaded(server, "mixed")
    assert json.loads(document["value_decoded"]) == {"id": "a", "more": [1.5]}
    assert json.loads(proto["value_decoded"]) == {"key": "k", "at": "2023-11-14T22:13:20Z", "value": {"count": 1 << 60}}
    assert header["value_decoded"] == '{"n": 7}'
    assert header["value_schema"] == f"Avro, schema {number}"


def test_a_viewer_sees_no_schema_of_a_topic_without_rights(tmp_path: Path) -> None:
    with InProcessServer(
        schema_registry_enable=True, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin",
        allow_everyone_if_no_acl_found=True, oci_auth="verify", oci_auth_keys=tmp_path,
    ) as server:  # fmt: skip
        create(server, ("open", 1))
        number = registered(server, "secret-value", json.dumps(AVRO))
        value = {"key": "k", "value": 5, "at": datetime.fromtimestamp(1, UTC), "price": Decimal("1.00")}
        sent(server, "open", prefixed(number, avro(AVRO, value)))
        assert downloaded(server, "open")[0]["value_schema"] == f"Avro, schema {number}"
        denied = CreateAclsRequest.AclCreation(
            resource_type=2, resource_name="secret", resource_pattern_type=3, principal="User:ANONYMOUS", host="*",
            operation=2, permission_type=2,
        )  # fmt: skip
        with Wire(server.kafka) as wire:
            assert wire.ask(CreateAclsRequest(creations=[denied]), 3).results[0].error_code == 0
        (line,) = downloaded(server, "open")
        assert line["value_fault"] == f"there is no schema of id {number}"


def test_without_a_registry_nothing_is_decoded() -> None:
    with InProcessServer() as server:
        create(server, ("raw", 1))
        sent(server, "raw", b"\0\0\0\0\1abc")
        (line,) = downloaded(server, "raw")
        assert "value_schema" not in line
        assert "value_fault" not in line
