import base64
from collections.abc import Mapping
from functools import cache

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.protobuf_compiler import compiled
from headrace.schemas import formats, proto_text, protobuf
from headrace.schemas.errors import InvalidSchema, Steps
from headrace.schemas.model import Parsed, Reference, Referenced, Schema

HEAD = 'syntax = "proto3"; package p; '


@cache
def _compiled(text: str, imports: tuple[tuple[str, str], ...]) -> bytes:
    return compiled(text, "the schema", dict(imports))


def compiler(text: str, imports: Mapping[str, str]) -> bytes:
    try:
        return _compiled(text, tuple(imports.items()))
    except OptionError as error:
        raise ValueError(str(error)) from None


def parse(text: str, *imports: Referenced, normalize: bool = False) -> Parsed:
    references = tuple(Reference(one.name, "subject", 1) for one in imports)
    return formats.parse("PROTOBUF", text, references, imports, Steps(), compiler, normalize=normalize)


def imported(name: str, text: str) -> Referenced:
    parsed = parse(text)
    return Referenced(name, Schema("PROTOBUF", parsed.text, (), parsed.descriptor))


LARGE = """
syntax = "proto3";
package a.b;
import "google/protobuf/timestamp.proto";
import "other.proto";
option java_package = "x.y";
option optimize_for = SPEED;
message M {
  option deprecated = true;
  int32 a = 1; optional string b = 2 [json_name = "bee"]; repeated int64 c_d = 3 [packed = false];
  map<string, N> m = 4; oneof o { string x = 5; N y = 6; } google.protobuf.Timestamp t = 7; other.O oo = 8; E e = 9;
  message N { int32 q = 1; enum K { Z = 0; Y = -1; } }
  reserved 20 to 30, 40; reserved "foo", "bar";
}
enum E { option allow_alias = true; NIL = 0; ONE = 1; UNO = 1 [deprecated = true]; reserved 5 to max; }
service S { rpc Do (M) returns (stream M.N) { option deprecated = true; } }
"""
OLD = """
syntax = "proto2";
package z;
message M {
  required int32 a = 1 [default = 5]; optional string s = 2 [default = "q\\"x\\n"];
  optional bytes bb = 4 [default = "\\001x"]; optional double d = 9 [default = inf];
  optional group G = 3 { optional int32 i = 1; } extensions 100 to 200;
  message Late { optional M.G g = 1; } extend M { optional int32 ext = 150; }
}
extend M { optional string ext2 = 151; }
"""


@pytest.mark.parametrize("text", [LARGE, OLD], ids=["proto3", "proto2"])
def test_a_file_is_the_same_schema_as_its_serialized_descriptor(text: str) -> None:
    other = [imported("other.proto", 'syntax = "proto3"; package other; message O { int32 z = 1; }')]
    parsed = parse(text, *(other if text is LARGE else ()))
    serialized = parse(protobuf.serialized(parsed.descriptor), *(other if text is LARGE else ()))
    again = parse(serialized.text, *(other if text is LARGE else ()))
    assert serialized.guid == again.guid == parsed.guid
    assert serialized.descriptor == again.descriptor == parsed.descriptor
    assert parsed.text == text
    assert parse(text, *(other if text is LARGE else ()), normalize=True).text == serialized.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonsense", "base64"),
        ("message A { int32 x }", "Invalid Protobuf schema"),
        (HEAD + 'import "none.proto"; message A {}', "none.proto"),
        (base64.b64encode(b"\xff\xff").decode(), "not of a FileDescriptorProto"),
        (base64.b64encode(b"\x1a\x0anone.proto").decode(), "none.proto"),
    ],
)
def test_invalid_schemas_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema) as error:
        parse(text)
    assert why in str(error.value)


def test_well_known_files_may_be_given_as_references() -> None:
    text = HEAD + 'import "google/protobuf/timestamp.proto"; message A { google.protobuf.Timestamp t = 1; }'
    serialized = protobuf.serialized(parse(text).descriptor)
    own = timestamp_pb2.DESCRIPTOR.serialized_pb
    known = parse(base64.b64encode(own).decode())
    given = Referenced("google/protobuf/timestamp.proto", Schema("PROTOBUF", known.text, (), known.descriptor))
    assert parse(serialized).descriptor == parse(serialized, given).descriptor == parse(text, given).descriptor


def test_contradictory_descriptors_are_refused() -> None:
    made = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    message = made.message_type.add(name="A")
    entry = message.nested_type.add(name="XEntry")
    entry.options.map_entry = True
    message.field.add(name="x", number=1, label=3, type=11, type_name=".A.XEntry")
    with pytest.raises(InvalidSchema, match="Invalid Protobuf schema"):
        parse(protobuf.serialized(made.SerializeToString()))


def test_text_needs_a_compiler() -> None:
    with pytest.raises(InvalidSchema, match="grpcio-tools"):
        formats.parse("PROTOBUF", HEAD, (), (), Steps())


def test_nested_messages_keep_their_order() -> None:
    text = HEAD + "message A { map<string, int32> m = 1; message B { int32 x = 1; } B b = 2; message C {} }"
    (message,) = parse(protobuf.serialized(parse(text).descriptor)).content.main.message_type
    assert [one.name for one in message.nested_type] == ["MEntry", "B", "C"]
    assert proto_text.json_name("a_b_c") == "aBC"


def differences(old: str, new: str) -> list[str]:
    return [
        one.kind
        for one in formats.differences("PROTOBUF", parse(HEAD + new).content, parse(HEAD + old).content, Steps())
    ]


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("message A { int32 x = 1; }", "message A { int64 y = 1; string z = 2; } message B {}", []),
        ("message A { int32 x = 1; string y = 2; }", "message A { int32 x = 1; }", []),
        ("message A { E x = 1; } enum E { Z = 0; }", "message A { int32 x = 1; }", []),
        ("message A { string x = 1; }", "message A { bytes x = 1; }", []),
        ("message A { string x = 1; }", "message A { repeated string x = 1; }", []),
        ("message A { int32 x = 1; }", "message A { oneof o { int32 x = 1; string y = 2; } }", []),
        ("message A { int32 x = 1; }", "message A { string x = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("message A { int32 x = 1; }", "message A { sint32 x = 1; }", ["FIELD_SCALAR_KIND_CHANGED"]),
        ("message A { int32 x = 1; }", "message A { repeated int32 x = 1; }", ["FIELD_NUMERIC_LABEL_CHANGED"]),
        ("message A { int32 x = 1; }", "message A { B x = 1; } message B {}", ["FIELD_KIND_CHANGED"]),
        ("message A { map<string, int32> x = 1; }", "message A { map<string, string> x = 1; }",
         ["FIELD_SCALAR_KIND_CHANGED"]),
        ("message A {} message B {}", "message A {}", ["MESSAGE_REMOVED"]),
        ("message A { message B {} }", "message A {}", ["MESSAGE_REMOVED"]),
        ("message A { B x = 1; } message B { int32 y = 1; }", "message A { B x = 1; } message B { string y = 1; }",
         ["FIELD_SCALAR_KIND_CHANGED"]),
        ("message A { B x = 1; } message B {} message C {}", "message A { C x = 1; } message B {} message C {}",
         ["FIELD_NAMED_TYPE_CHANGED"]),
        ("message A { int32 x = 1; int32 y = 2; }", "message A { oneof o { int32 x = 1; int32 y = 2; } }",
         ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"]),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { oneof o { int32 x = 1; } }",
         ["ONEOF_FIELD_REMOVED"]),
        ("message A { A x = 1; int32 y = 2; }", "message A { A x = 1; string y = 2; }", ["FIELD_SCALAR_KIND_CHANGED"]),
    ],
)  # fmt: skip
def test_differences_are_named(old: str, new: str, kinds: list[str]) -> None:
    assert differences(old, new) == kinds


def test_the_package_and_required_fields_must_stay() -> None:
    old = parse('syntax = "proto2"; package p; message A { required int32 x = 1; }').content
    new = parse('syntax = "proto2"; package q; message A { required int32 y = 2; }').content
    found = [one.kind for one in formats.differences("PROTOBUF", new, old, Steps())]
    assert found == ["PACKAGE_CHANGED", "REQUIRED_FIELD_REMOVED", "REQUIRED_FIELD_ADDED"]


def test_imports_are_compared() -> None:
    main = HEAD + 'import "o.proto"; message A { O o = 1; }'
    old, new = (
        parse(main, imported("o.proto", HEAD + f"message O {{ {kind} x = 1; }}")) for kind in ("int32", "string")
    )
    found = [one.kind for one in formats.differences("PROTOBUF", new.content, old.content, Steps())]
    assert found == ["FIELD_SCALAR_KIND_CHANGED"]


def test_the_number_of_definitions_is_bounded() -> None:
    """One call of protobuf's library checked 83,000 messages for 150 ms, in which no other thread ran."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    for place in range(protobuf.MOST_DEFINITIONS):
        file.message_type.add(name=f"M{place}")
    assert len(parse(base64.b64encode(file.SerializeToString()).decode()).content.messages) == protobuf.MOST_DEFINITIONS
    file.message_type[7].field.add(name="f", number=1, type=5, label=1)
    with pytest.raises(InvalidSchema, match="more than 25,000 messages, fields and values"):
        parse(base64.b64encode(file.SerializeToString()).decode())
