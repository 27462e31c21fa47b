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
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.lakehouse.decoders.protobuf_values import ProtobufDecoder

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
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled(text, "a test"))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoding, Any]:
    path = tmp_path_factory.mktemp("proto") / "value.desc"
    path.write_bytes(compiled(PROTO, "a test"))
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


WIRE = """
syntax = "proto2";
message Wire {
  enum Kind { NONE = 0; JET = 1; BELOW = -1; }
  message Inner { optional string s = 1; repeated Wire more = 2; }
  optional int64 a = 1;
  optional string s = 2;
  optional Kind kind = 3;
  repeated Kind packed = 4 [packed = true];
  map<string, int64> prices = 5;
  optional Inner inner = 6;
  repeated fixed32 small = 7;
  optional double d = 8;
  optional group Part = 9 { optional int32 x = 1; }
  repeated int32 numbers = 20;
}
"""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\x0a\x01x", "field Wire.a has a length where a varint belongs"),
        (b"\x8a\x00\x01x", "field Wire.a has a length where a varint belongs"),
        (b"\x09" + b"\x01" * 8, "field Wire.a has 64 bits where a varint belongs"),
        (b"\x10\x01", "field Wire.s has a varint where a length belongs"),
        (b"\x18\x07", "field Wire.kind has 7, which its enum has not"),
        (b"\x22\x02\x01\x05", "field Wire.packed has 5, which its enum has not"),
        (b"\x2a\x04\x08\x01\x10\x01", "PricesEntry.key has a varint where a length belongs"),
        (b"\x32\x02\x08\x01", "field Wire.Inner.s has a varint where a length belongs"),
        (b"\x32\x05\x12\x03\x0a\x01x", "field Wire.a has a length where a varint belongs"),
        (b"\x30\x01", "field Wire.inner has a varint where a length belongs"),
        (b"\x3d" + b"\x01" * 4 + b"\x38\x01", "field Wire.small has a varint where 32 bits belongs"),
        (b"\x45" + b"\x01" * 4, "field Wire.d has 32 bits where 64 bits belongs"),
        (b"\x4b\x0d\x00\x00\x00\x00\x4c", "field Wire.Part.x has 32 bits where a varint belongs"),
        (b"\x4a\x02\x08\x01", "field Wire.part has a length where a group belongs"),
    ],
)
def test_a_field_of_another_type_is_no_default(value: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "wire.proto"
    path.write_text(WIRE)
    found = split(Decoding.of(str(path)), [b"\x08\x01", value, b"\x50\x01\x08\x05" + value, b"\x08\x02"])
    assert list(found.dead) == [1, 2]
    assert reason in found.dead[1]
    assert reason in found.dead[2]


def test_fields_of_a_later_schema_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "wire.proto"
    path.write_text(WIRE)
    later = [b"\x50\x01", b"\x52\x02\x0a\x01", b"\x53\x0a\x01x\x54", b"\x32\x03\x1a\x01x", b"\x55" + b"\x00" * 4]
    known = (
        b"\x08\x05\x22\x02\x01\x00\x20\x01\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xa0\x01\x03\xa2\x01\x02\x04\x05\x3a\x04"
        + b"\x01" * 4
    )
    found = split(Decoding.of(str(path)), [one + known for one in later])
    assert found.dead == {}
    for row in range(len(later)):
        assert found.table[row]["numbers"] == [3, 4, 5]
        assert found.table[row]["kind"] == "BELOW"
        assert found.table[row]["packed"] == ["JET", "NONE", "JET"]


FIELDS = " ".join(f"optional int64 f{place} = {place + 1};" for place in range(900))

WIDE = f'syntax = "proto3"; message M {{ repeated I items = 1; }} message I {{ {FIELDS} }}'

GROUPS = " ".join(f"optional G{group} g{group} = {group + 1};" for group in range(15))

PARTS = " ".join(
    f"message G{group} {{ {' '.join(f'int32 f{place} = {place + 1};' for place in range(15))} }}" for group in range(15)
)

NESTED = f'syntax = "proto3"; message M {{ repeated I items = 1; }} message I {{ {GROUPS} }} {PARTS}'

ITSELF = f'syntax = "proto3"; message M {{ repeated I items = 1; }} message I {{ {FIELDS} repeated I more = 901; }}'

MAP = f'syntax = "proto3"; message M {{ map<int32, I> items = 17; }} message I {{ {FIELDS} }}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (WIDE, b"\x0a\x00" * 2_000),
        (WIDE, b"\x8a\x00\x00" * 300_000),
        (NESTED, b"\x0a\x00" * 2_000),
        (ITSELF, b"\x0a\x00" * 2_000),
        (ITSELF, b"\x0a\xb8\x17" + b"\xaa\x38\x00" * 1_000),
        (
            MAP,
            b"".join(
                b"\x8a\x01\x05\x08" + bytes([0x80 | place & 0x7F, place >> 7]) + b"\x12\x00" for place in range(2_000)
            ),
        ),
    ],
)
def test_a_message_becomes_as_much_as_its_bytes_allow(text: str, value: bytes, tmp_path: Path) -> None:
    path = tmp_path / "wide.proto"
    path.write_text(text)
    usual = {MAP: b"", NESTED: b"\x0a\x02\x0a\x00"}.get(text, b"\x0a\x02\x08\x05")
    found = split(Decoding.of(str(path), message="M"), [usual, value, usual * 10])
    assert list(found.dead) == [1]
    assert "cells in columns, the most of" in found.dead[1]


MAPS = """
syntax = "proto3";
message Outer {
  message Before { int32 n = 1; }
  map<string, int32> prices = 1;
  message After { int32 n = 1; }
}
"""


@pytest.mark.parametrize("index", [1, 2])
def test_a_message_behind_a_map_is_named(index: int) -> None:
    made = compiled(MAPS, "a test")
    with pytest.raises(OptionError, match=r"producers differ in whether they count its maps.* --schema-message NAME"):
        ProtobufDecoder(made, None, "a test", indexes=(0, index))
    assert ProtobufDecoder(made, "Outer.After", "a test", indexes=(0, index)).kind.fields[0].source == "n"


def test_a_message_before_all_maps_is_known_by_its_place() -> None:
    # The compiler puts messages and entries in the order of the file.
    made = compiled(MAPS, "a test")
    assert ProtobufDecoder(made, None, "a test", indexes=(0, 0)).kind.fields[0].source == "n"
    with pytest.raises(OptionError, match="message 3 in Outer, which has 3"):
        ProtobufDecoder(made, None, "a test", indexes=(0, 3))
