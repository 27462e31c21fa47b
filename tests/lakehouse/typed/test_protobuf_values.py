"""Protobuf messages as columns; protobuf's own library writes what is right."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.mutation import mutated
from tests.harness.typed_values import split

from headrace.client.errors import OptionError
from headrace.lakehouse.typed import protobuf_schema
from headrace.lakehouse.typed.decoder import Decoding

PROTO = """
syntax = "proto3";
package ex;
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Whole {
  message Nothing {}
  message Node { int32 v = 1; Node next = 2; }
  enum Kind { NONE = 0; JET = 1; }
  google.protobuf.Empty empty = 1;
  oneof choice { Nothing nothing = 2; string name = 3; google.protobuf.Empty void = 4; }
  Node node = 5;
  google.protobuf.Struct free = 6;
  uint64 big = 7;
  repeated Kind kinds = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Int64Value wrapped = 10;
  map<string, Nothing> nothings = 11;
  map<int32, double> prices = 12;
  repeated Node nodes = 13;
  bytes raw = 14;
  sint64 offset = 15;
  string Name = 16;
  fixed32 small = 17;
  repeated Nothing several = 18;
}
"""
OLD = """
syntax = "proto2";
message Old { required int32 id = 1; optional string name = 2; optional group Part = 3 { optional int32 x = 4; } }
"""


def message_class(text: str, name: str) -> Any:
    files = descriptor_pb2.FileDescriptorSet.FromString(protobuf_schema.compiled(text, "a test"))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoding, Any]:
    path = tmp_path_factory.mktemp("proto") / "value.desc"
    path.write_bytes(protobuf_schema.compiled(PROTO, "a test"))
    return Decoding.of(str(path)), message_class(PROTO, "ex.Whole")


def filled(made: Any) -> Any:
    value = made()
    value.empty.SetInParent()
    value.void.SetInParent()
    value.node.v = 1
    value.node.next.v = 2
    value.free.update({"a": [1.5, None, {"b": True}]})
    value.big = (1 << 64) - 1
    value.kinds.extend([1, 0, 7])
    value.at.FromJsonString("2026-01-02T03:04:05.000006Z")
    value.wrapped.value = 5
    value.nothings["x"].SetInParent()
    value.prices[3] = 0.5
    value.nodes.add().v = 9
    value.raw = b"\xff"
    value.offset = -1
    value.Name = "N"
    value.small = 4_294_967_295
    value.several.add()
    return value


def test_messages_are_exact(whole: tuple[Decoding, Any]) -> None:
    decoding, made = whole
    named = made(name="n")
    found = split(decoding, [filled(made).SerializeToString(), named.SerializeToString(), b"", None])
    assert found.dead == {}
    row = found.table[0]
    assert json.loads(row.pop("node")) == {"v": 1, "next": {"v": 2}}
    assert json.loads(row.pop("free")) == {"a": [1.5, None, {"b": True}]}
    assert row == {
        "empty": "{}",
        "void": "{}",
        "big": Decimal((1 << 64) - 1),
        "kinds": ["JET", "NONE", "7"],
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
        "wrapped": {"value": 5},
        "nothings": {"x": "{}"},
        "prices": {3: 0.5},
        "nodes": ['{"v": 9}'],
        "raw": b"\xff",
        "value_offset": -1,
        "Name_dcd1d522": "N",
        "small": 4_294_967_295,
        "several": ["{}"],
    }
    assert found.table[1]["name"] == "n"
    assert "void" not in found.table[1]
    assert found.table[3] == {}


TOKENS = [
    b"\x00",
    b"\x08",
    b"\x0b",
    b"\x0c",
    b"\x80",
    b"\xff",
    b"\x2a\x02\x08\x01",
    b"\x3a\x01",
    b"\xff" * 10,
    b"\x1a\x01\xff",
]


@settings(max_examples=80, deadline=None, database=None)
@given(st.data())
def test_anything_is_decoded_or_set_aside(whole: tuple[Decoding, Any], data: st.DataObject) -> None:
    decoding, made = whole
    usual = filled(made).SerializeToString()
    values = data.draw(st.lists(mutated(st.just(usual), TOKENS) | st.binary(max_size=9), max_size=6))
    found = split(decoding, [usual, *values, usual])
    assert not {0, len(values) + 1} & set(found.dead)
    assert found.table[0] == found.table[len(values) + 1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\xff", "not a message of this type"),
        (b"\x2a" + b"\xff" * 9 + b"\x01", "not a message of this type"),
        (b"\x1a\x01\xff", "not a message of this type"),
        (b"\x0c", "not a message of this type"),
        (b"\x4a\x06\x10\x81\x80\x80\x80\x08", "nanoseconds"),
        (b"\x4a\x02\x10\x01", "has more digits than microseconds"),
        (b"\x4a\x0a\x08" + b"\xff" * 8 + b"\x7f", "outside of the years 1 to 9999"),
    ],
)
def test_what_is_wrong_is_said(whole: tuple[Decoding, Any], value: bytes, reason: str) -> None:
    assert reason in split(whole[0], [value]).dead[0]


def test_a_message_in_itself_without_end(whole: tuple[Decoding, Any]) -> None:
    value = b""
    for _ in range(2_000):
        length = len(value)
        size = b""
        while length >= 0x80:
            size += bytes([length & 0x7F | 0x80])
            length >>= 7
        value = b"\x12" + size + bytes([length]) + value
    found = split(whole[0], [b"\x2a\x00", b"\x2a" + value[1:], b"\x2a\x00"])
    assert list(found.dead) == [1]


def test_required_fields_and_groups(tmp_path: Path) -> None:
    path = tmp_path / "old.proto"
    path.write_text(OLD)
    found = split(
        Decoding.of(str(path)),
        [b"\x08\x01\x1b\x20\x07\x1c", b"\x12\x01x", b"\x08\x01\x1b\x20\x07", b"\x08\x01\x12\x01\xff"],
    )
    assert found.table == {0: {"id": 1, "part": {"x": 7}}}
    assert "required fields are missing: id" in found.dead[1]
    assert list(found.dead) == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('syntax = "proto3"; message A { Nowhere b = 1; }', '"Nowhere" is not defined'),
        ('syntax = "proto3"; import "no/such.proto"; message A { int32 b = 1; }', "no/such.proto: File not found"),
        ('syntax = "proto3"; message A {}', "A has no fields"),
        ('syntax = "proto3"; enum A { X = 0; }', "the file has no message"),
        ("\0", "is not a .proto file that can be compiled"),
    ],
)
def test_a_schema_that_cannot_be_used_is_one_line(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "value.proto"
    path.write_text(text)
    with pytest.raises(OptionError) as told:
        Decoding.of(str(path))
    assert reason in str(told.value)
    assert "\n" not in str(told.value)
