"""Values in Confluent's wire format, by schemas of a folder and of a registry, with those that they refer to."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.mutation import mutated
from tests.harness.typed_values import split
from tests.lakehouse.decoders.test_avro_values import written

from headrace.client.errors import ModuleMissing, OptionError, StoreUnavailable
from headrace.lakehouse.decoders.decoder import Decoding

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "to", "type": "shop.Address"}]}
LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "order", "type": "Order"}]}
PROTO = (
    'syntax = "proto3"; import "common/money.proto"; message Price { Money total = 1; } message Other { int32 n = 1; }'
)
MONEY = 'syntax = "proto3"; message Money { int64 cents = 1; }'
JSON = {"properties": {"to": {"$ref": "address.json"}}}
CITY = {"properties": {"city": {"type": "string"}}}
REFERENCES = {
    1: {"schema": json.dumps(ADDRESS)},
    2: {"schema": json.dumps(ORDER), "references": [{"name": "shop.Address", "subject": "a/b", "version": 3}]},
    3: {
        "schema": PROTO,
        "schemaType": "PROTOBUF",
        "references": [{"name": "common/money.proto", "subject": "money", "version": 1}],
    },
    4: {
        "schema": json.dumps(JSON),
        "schemaType": "JSON",
        "references": [{"name": "address.json", "subject": "city", "version": 1}],
    },
    5: {"schema": json.dumps(LINE), "references": [{"name": "shop.Order", "subject": "order", "version": 1}]},
    6: {"schema": json.dumps(ORDER), "references": [{"name": "shop.Address", "subject": "gone", "version": 1}]},
    7: {"schema": json.dumps(ORDER)},
    8: {
        "schema": PROTO,
        "schemaType": "PROTOBUF",
        "references": [{"name": "../../money.proto", "subject": "money", "version": 1}],
    },
    9: {"schema": "x", "schemaType": "THRIFT"},
    10: {"schema": "{}", "schemaType": "JSON"},
}
SUBJECTS = {
    "/subjects/a%2Fb/versions/3": {"schema": json.dumps(ADDRESS)},
    "/subjects/money/versions/1": {"schema": MONEY},
    "/subjects/city/versions/1": {"schema": json.dumps(CITY)},
    "/subjects/order/versions/1": REFERENCES[2],
}


class Answers(BaseHTTPRequestHandler):
    """A registry, as Confluent's answers."""

    asked: list[str]
    status = 200

    def do_GET(self) -> None:
        self.asked.append(self.path)
        number = self.path.rpartition("/")[2]
        found: Any = SUBJECTS.get(self.path)
        if self.path.startswith("/schemas/ids/"):
            found = REFERENCES.get(int(number))
        body = json.dumps(found).encode()
        self.send_response(self.status if self.status != 200 else 404 if found is None else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def registry() -> Iterator[tuple[str, type[Answers]]]:
    answers = type("Answering", (Answers,), {"asked": []})
    server = HTTPServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()
    thread.join()


def framed(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + value


def avro(record: dict[str, Any], *schemas: dict[str, Any]) -> bytes:
    named: dict[str, Any] = {}
    for schema in schemas:
        parsed = fastavro.parse_schema(schema, named_schemas=named)
    return written(record, parsed)


ORDERED = avro({"to": {"city": "x"}}, ADDRESS, ORDER)
VALUES = [
    framed(2, ORDERED),
    framed(3, b"\x00" + b"\x0a\x02\x08\x05"),
    framed(4, b'{"to": {"city": "y"}}'),
    framed(5, avro({"order": {"to": {"city": "z"}}}, ADDRESS, ORDER, LINE)),
    framed(3, b"\x02\x02" + b"\x08\x07"),
]
DECODED = {
    0: {"to": {"city": "x"}},
    1: {"total": {"cents": 5}},
    2: {"to": {"city": "y"}},
    3: {"order": {"to": {"city": "z"}}},
    4: {"n": 7},
}
ASIDE = {
    framed(6, ORDERED): "schema 6 refers to 'shop.Address', version 1 of subject 'gone'" if False else "does not have",
    framed(7, ORDERED): "field to: type 'shop.Address' is not defined",
    framed(8, b"\x00"): "an import is called '../../money.proto'",
    framed(9, b""): "of a kind that is not known: THRIFT",
    framed(10, b"{}"): "describes no object",
    framed(11, b""): "there is no schema of id 11",
    framed(3, b""): "its message indexes are none",
    framed(3, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"): "its message indexes are none",
    framed(3, b"\x80"): "its message indexes are none",
    framed(3, b"\x02\x01"): "its message indexes are none",
    framed(3, b"\x02\x08\x08\x07"): "message 4 of a file that has 2",
    framed(3, b"\x04\x02\x02\x08\x07"): "message 1 in Other, which has 0",
    framed(2, b""): "it ends early",
    b"": "not in Confluent's wire format",
    b"\0\0\0\0": "not in Confluent's wire format",
    b"\1" + framed(2, ORDERED)[1:]: "not in Confluent's wire format",
}


def test_references_of_a_registry(registry: tuple[str, type[Answers]]) -> None:
    url, answers = registry
    values = [*VALUES, *ASIDE, *VALUES]
    found = split(Decoding.of("confluent", registry=url), values)
    again = {row + len(VALUES) + len(ASIDE): each for row, each in DECODED.items()}
    assert found.table == DECODED | again
    for row, reason in enumerate(ASIDE.values(), len(VALUES)):
        assert reason in found.dead[row]
    assert len(answers.asked) < 25, "each is asked for once, or once more where it was not there"


def test_references_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    files = {
        "2.avsc": json.dumps(ORDER),
        "5.avsc": json.dumps(LINE),
        "shop.Address.avsc": json.dumps(ADDRESS),
        "shop.Order.avsc": json.dumps(ORDER),
        "3.proto": PROTO,
        "common/money.proto": MONEY,
        "4.json": json.dumps(JSON),
        "address.json": json.dumps(CITY),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = split(Decoding.of("confluent", registry=str(tmp_path)), VALUES)
    assert (found.table, found.dead) == (DECODED, {})


def test_a_registry_that_does_not_let_us_in(registry: tuple[str, type[Answers]]) -> None:
    url, answers = registry
    answers.status = 401
    with pytest.raises(OptionError, match=r"answers 401 for /schemas/ids/3: give user and password"):
        split(Decoding.of("confluent", registry=url), VALUES)
    answers.status = 500
    with pytest.raises(StoreUnavailable, match=r"answers 500 for /schemas/ids/3"):
        split(Decoding.of("confluent", registry=url), VALUES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Decoding:
    made = tmp_path_factory.mktemp("schemas")
    for name, text in {"1.avsc": json.dumps(ADDRESS), "2.json": json.dumps(CITY), "3.proto": MONEY}.items():
        (made / name).write_text(text)
    return Decoding.of("confluent", registry=str(made))


USUAL = (
    framed(1, b"\x02x"),
    framed(2, b'{"city": "y"}'),
    framed(3, b"\x00\x08\x05"),
)


@settings(max_examples=80, deadline=None, database=None)
@given(st.lists(mutated(st.sampled_from(USUAL), [b"\0", b"\x02", b"\xff", b"\x80", b'"', b"{"]), max_size=8))
def test_anything_is_decoded_or_set_aside(folder: Decoding, values: list[bytes]) -> None:
    found = split(folder, [*USUAL, *values, *USUAL])
    after = len(USUAL) + len(values)
    for row, wanted in enumerate(({"city": "x"}, {"city": "y"}, {"cents": 5})):
        assert found.table[row] == found.table[after + row] == wanted


def test_records_that_are_set_aside_add_no_columns(folder: Decoding) -> None:
    assert split(folder, [framed(1, b"\xff"), framed(3, b"\x00\x08\x05")]).columns.names == ["cents"]


@pytest.mark.parametrize("absent", ["grpc_tools", "google.protobuf"])
def test_without_the_extra_no_protobuf_value_is_set_aside(
    absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.proto").write_text('syntax = "proto3"; message Price { int64 cents = 1; }')
    (tmp_path / "2.avsc").write_text(json.dumps(ADDRESS))
    decoding = Decoding.of("confluent", registry=str(tmp_path))
    city = b"\0\0\0\0\2\x08Rome"
    monkeypatch.setitem(sys.modules, absent, None)
    assert not split(decoding, [city]).dead, "Avro needs no extra"
    with pytest.raises(ModuleMissing, match=f"schema 1 needs the Python module {absent}: install the extra `schemas`"):
        split(decoding, [city, b"\0\0\0\0\1\0\x08\x01"])
    monkeypatch.undo()
    assert not split(Decoding.of("confluent", registry=f"{tmp_path}/"), [b"\0\0\0\0\1\0\x08\x01"]).dead
