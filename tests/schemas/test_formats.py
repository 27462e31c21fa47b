"""Names of the records of a schema, as `RecordNameStrategy` of Confluent's clients makes them."""

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from headrace.schemas.errors import Steps
from headrace.schemas.formats import record_names
from headrace.schemas.model import Schema


@pytest.mark.parametrize(
    ("kind", "document", "names"),
    [
        ("AVRO", {"type": "record", "name": "Order", "namespace": "shop", "fields": []}, {"shop.Order"}),
        ("AVRO", {"type": "record", "name": "shop.eu.Order", "namespace": "other", "fields": []}, {"shop.eu.Order"}),
        ("AVRO", {"type": "enum", "name": "Color", "symbols": []}, {"Color"}),
        ("AVRO", {"type": "array", "items": "string"}, set()),
        ("AVRO", "string", set()),
        ("AVRO", ["null", "string"], set()),
        ("JSON", {"title": "Order", "type": "object"}, {"Order"}),
        ("JSON", {"type": "object"}, set()),
        ("JSON", {"title": 3}, set()),
        ("JSON", True, set()),
    ],
)
def test_names_in_json(kind: str, document: Any, names: set[str]) -> None:
    assert record_names(Schema(kind, json.dumps(document)), Steps()) == names


def test_all_messages_of_a_protobuf_file() -> None:
    file = descriptor_pb2.FileDescriptorProto(package="shop")
    file.message_type.add(name="Other")
    file.message_type.add(name="Order").nested_type.add(name="Inner")
    schema = Schema("PROTOBUF", "", descriptor=file.SerializeToString())
    assert record_names(schema, Steps()) == {"shop.Other", "shop.Order", "shop.Order.Inner"}
    file.package = ""
    assert "Order" in record_names(Schema("PROTOBUF", "", descriptor=file.SerializeToString()), Steps())
