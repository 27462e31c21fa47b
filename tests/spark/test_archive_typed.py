"""Typed tables: columns, their evolution, and the table of rejected records. Without Spark."""

import io
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Self

import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver

from headrace.client.errors import OptionError, StoreUnavailable, TableError
from headrace.lakehouse.decoders import protobuf_compiler
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.write import batch, data_files, maintenance
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import DEAD_COLUMNS, ArchiveTable, Snapshot, WrittenFile
from headrace.records.build import build
from headrace.topics.model import Topic

from .conftest import DAY

OWN = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "topicId"]


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    return storage.create_topic("typed-" + request.node.name.replace("[", "-").rstrip("]"))


def send(storage: BareStorage, topic: Topic, values: Sequence[bytes | None]) -> None:
    storage.append_batch(topic, 0, bytes(build([(None, value, DAY, ()) for value in values])))


def rows(table: Path) -> list[dict[str, Any]]:
    """Offsets and columns of values, nulls left out."""
    found = DeltaTable(table).to_pyarrow_table().sort_by("offset").to_pylist()
    return [
        {name: value for name, value in row.items() if name not in OWN and value is not None} | {"at": row["offset"]}
        for row in found
    ]


def dead(table: Path) -> dict[int, str]:
    found = DeltaTable(f"{table}_dlq").to_pyarrow_table().to_pylist()
    assert len({row["offset"] for row in found}) == len(found), "once each"
    return {row["offset"]: row["reason"] for row in found}


def test_columns_of_json_are_found_and_grow(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    table = tmp_path / "t"
    values = [
        b'{"id": 1, "timestamp": "2026-01-02T03:04:05Z", "tags": ["a"]}',
        b"not json",
        None,
        b'{\n  "id": 2\n}',
        b'{"id": "three"}',
        b"",
        b'{"id": 5}{"id": 6}',
        b'["no object"]',
    ]
    send(storage, topic, values)
    archiver = Archiver(storage, topic, table, decoding=Decoding.of("json"))
    assert archiver.archive((0, 0, 8)) == 3
    assert rows(table) == [
        {"at": 0, "id": 1, "value_timestamp": "2026-01-02T03:04:05Z", "tags": ["a"]},
        {"at": 2},
        {"at": 3, "id": 2},
    ]
    assert sorted(dead(table)) == [1, 4, 5, 6, 7]
    assert dead(table)[4] == "field id: text 'three' does not fit a column of int64"
    kept = DeltaTable(f"{table}_dlq").to_pyarrow_table().sort_by("offset").column("value").to_pylist()
    assert kept == [values[row] for row in (1, 4, 5, 6, 7)]
    # A field that was not there before is a column more; the process may be another one.
    send(storage, topic, [b'{"id": 9, "delay": 1.5}', b'{"delay": "late"}'])
    assert Archiver(storage, topic, table, decoding=Decoding.of("json")).archive((0, 0, 10)) == 1
    assert rows(table)[-1] == {"at": 8, "id": 9, "delay": 1.5}
    assert sorted(dead(table)) == [1, 4, 5, 6, 7, 9]
    # Files with fewer columns and with more are one file afterwards.
    before = rows(table)
    assert maintenance.compact(ArchiveTable(Place.of(str(table)))).before == 2
    assert rows(table) == before


def test_a_kill_between_the_two_tables_doubles_nothing(
    storage: BareStorage, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    send(storage, topic, [b'{"a": 1}', b"bad", b'{"a": 2}', b"worse"])
    archiver = Archiver(storage, topic, table, decoding=Decoding.of("json"))
    archiver.archive((0, 0, 1))

    def die(_self: Snapshot, _topic_id: str, files: list[WrittenFile], *_rest: object) -> None:
        if any(file.rows for file in files):
            raise KeyboardInterrupt

    whole = Snapshot.commit

    def commit(self: Snapshot, *arguments: Any) -> None:
        (whole if "dlq" in self._place.url else die)(self, *arguments)

    monkeypatch.setattr(Snapshot, "commit", commit)
    with pytest.raises(KeyboardInterrupt):
        archiver.archive((0, 1, 4))
    monkeypatch.undo()
    assert sorted(dead(table)) == [1, 3], "the table beside has them, the other one does not"
    again = Archiver(storage, topic, table, decoding=Decoding.of("json"))
    assert again.archive((0, 1, 3)) == 1
    assert again.archive((0, 3, 4)) == 0
    assert rows(table) == [{"at": 0, "a": 1}, {"at": 2, "a": 2}]
    assert sorted(dead(table)) == [1, 3]


NUMBERS, TEXTS = (b'{"properties": {"a": {"type": "%s"}}}' % kind for kind in (b"integer", b"string"))


@pytest.mark.parametrize("kills", [1, 2])
def test_a_schema_that_changes_after_a_kill_between_the_two_tables_loses_and_doubles_nothing(
    storage: BareStorage, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """A record that was set aside can be decoded now, and another one no longer."""
    table = tmp_path / "t"
    values = [b'{"a": 1}', b'{"a": "x"}', b'{"a": 2}', b'{"a": "y"}', b"{}"]
    send(storage, topic, values)

    def commit(self: Snapshot, *arguments: Any) -> None:
        if "dlq" not in self._place.url:
            raise KeyboardInterrupt
        whole(self, *arguments)

    whole = Snapshot.commit
    for number in range(kills):
        monkeypatch.setattr(Snapshot, "commit", commit)
        schema = (NUMBERS, TEXTS)[number]
        with pytest.raises(KeyboardInterrupt):
            Archiver(storage, topic, table, decoding=Decoding(".json", schema)).archive((0, 0, 5 - number))
    monkeypatch.undo()
    assert sorted(dead(table)) == [[1, 3], [0, 1, 2, 3]][kills - 1]
    again = Archiver(storage, topic, table, decoding=Decoding(".json", TEXTS))
    again.archive((0, 0, 5))
    assert rows(table) == [{"at": 4}]
    assert sorted(dead(table)) == [0, 1, 2, 3]
    # Dead letters that lie between others are joined with none of them.
    assert len(DeltaTable(f"{table}_dlq").file_uris()) > 1
    maintenance.compact(ArchiveTable(Place.of(f"{table}_dlq"), DEAD_COLUMNS))
    assert sorted(dead(table)) == [0, 1, 2, 3]


def test_the_offsets_of_dead_letters_are_found_in_files_of_other_writers(storage: BareStorage, tmp_path: Path) -> None:
    """Delta's OPTIMIZE joins files of several partitions."""
    topic = storage.create_topic("typed-optimized", partitions=3)
    for number in range(3):
        storage.append_batch(topic, number, bytes(build([(None, b"bad", DAY, ())] * (number + 2))))
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    archiver.archive((0, 0, 2), (1, 0, 3), (2, 0, 4))
    table = DeltaTable(f"{tmp_path / 't'}_dlq")
    table.optimize.compact()
    assert len(table.file_uris()) == 1
    assert archiver.dead is not None
    snapshot = archiver.dead.snapshot()
    assert sorted(snapshot.offsets(str(topic.id), 1, 0, 3).to_pylist()) == [0, 1, 2]
    assert sorted(snapshot.offsets(str(topic.id), 2, 1, 3).to_pylist()) == [1, 2]
    assert snapshot.offsets(str(topic.id), 0, 2, 9).to_pylist() == []


def test_json_by_a_schema_that_is_given(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    path = tmp_path / "flight.json"
    path.write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "at": {"type": "string", "format": "date-time"},
                    "n": {"type": ["null", "integer"]},
                    "from": {"type": "object", "properties": {"lat": {"type": "number"}}},
                },
            }
        )
    )
    send(storage, topic, [b'{"at": "2026-01-02T03:04:05Z", "n": 3, "from": {"lat": 1}, "more": 1}', b'{"n": 1.5}'])
    Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of(str(path))).archive((0, 0, 2))
    table = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert [name for name in table.schema.names if name not in OWN] == ["at", "n", "from"]
    assert table.column("at").to_pylist() == [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)]
    assert table.column("from").to_pylist() == [{"lat": 1.0}]
    assert sorted(dead(tmp_path / "t")) == [1]


AVRO = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "legs", "type": {"type": "map", "values": "double"}},
    ],
}
WIDER = {**AVRO, "fields": [*AVRO["fields"], {"name": "gate", "type": "string", "default": "?"}]}
OTHER = {"type": "record", "name": "flight", "fields": [{"name": "id", "type": "string"}]}
FLIGHT = {"id": 7, "at": datetime(2026, 1, 2, tzinfo=UTC), "carrier": None, "legs": {"a": 1.0}}


def avro(schema: dict[str, Any], record: dict[str, Any], number: int | None = None) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), record)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + sink.getvalue()


def test_avro_by_a_schema_file(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    path = tmp_path / "flight.avsc"
    path.write_text(json.dumps(AVRO))
    whole = avro(AVRO, FLIGHT)
    send(storage, topic, [whole, whole[:-1], whole + b"x"])
    Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of(str(path))).archive((0, 0, 3))
    [row] = DeltaTable(tmp_path / "t").to_pyarrow_table().to_pylist()
    assert {name: row[name] for name in FLIGHT} == FLIGHT | {"legs": [("a", 1.0)]}
    assert dead(tmp_path / "t")[2] == "not a value of this schema: 1 bytes are left over"
    assert sorted(dead(tmp_path / "t")) == [1, 2]


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Other { string x = 1; }
message Flight {
  enum Kind { UNKNOWN = 0; JET = 1; }
  message Leg { string to = 1; }
  int32 id = 1;
  optional string carrier = 2;
  google.protobuf.Timestamp left = 3;
  Kind kind = 4;
  repeated Leg stops = 5;
  map<string, double> prices = 6;
}
"""


def flight() -> bytes:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    files = descriptor_pb2.FileDescriptorSet.FromString(protobuf_compiler.compiled(PROTO, "a test"))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("Flight"))()
    made.id, made.kind, made.left.seconds = 7, 1, 1
    made.stops.add().to = "EWR"
    made.prices["y"] = 2.5
    return bytes(made.SerializeToString())


def test_protobuf_by_a_schema_file(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    path = tmp_path / "flight.proto"
    path.write_text(PROTO)
    with pytest.raises(OptionError, match=r"which message.*Other, Flight"):
        Decoding.of(str(path))
    compiled = tmp_path / "flight.desc"
    compiled.write_bytes(protobuf_compiler.compiled(PROTO, "a test"))
    send(storage, topic, [flight(), b"\xff"])
    for place, name in ((path, "t"), (compiled, "u")):
        archiver = Archiver(storage, topic, tmp_path / name, decoding=Decoding.of(str(place), message="Flight"))
        assert archiver.archive((0, 0, 2)) == 1
        [row] = rows(tmp_path / name)
        assert (row["id"], row["kind"], row["stops"], row["prices"]) == (7, "JET", [{"to": "EWR"}], [("y", 2.5)])
        assert row["left"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert "carrier" not in row
        assert sorted(dead(tmp_path / name)) == [1]


class Schemas(BaseHTTPRequestHandler):
    """A registry, as Confluent's answers."""

    away = False

    def do_GET(self) -> None:
        known = {"/schemas/ids/1": AVRO, "/schemas/ids/2": WIDER, "/schemas/ids/3": OTHER}
        found = known.get(self.path)
        status = 503 if Schemas.away else 404 if found is None else 200
        body = json.dumps({"schema": json.dumps(found)}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def test_values_that_name_their_schema(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    values = [
        avro(AVRO, FLIGHT, 1),
        avro(WIDER, FLIGHT | {"gate": "B4"}, 2),
        avro(OTHER, {"id": "x"}, 3),
        avro(AVRO, FLIGHT, 99),
        b"{}",
        None,
        avro(AVRO, FLIGHT | {"id": 8}, 1),
    ]
    folder = tmp_path / "schemas"
    folder.mkdir()
    for number, schema in enumerate((AVRO, WIDER, OTHER), 1):
        (folder / f"{number}.avsc").write_text(json.dumps(schema))
    (folder / "4.proto").write_text(PROTO)
    values.append(b"\0" + (4).to_bytes(4, "big") + bytes([2, 2]) + flight())
    send(storage, topic, values)
    server = HTTPServer(("127.0.0.1", 0), Schemas)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://user:secret@127.0.0.1:{server.server_port}"
    for place, name, more in ((str(folder), "t", 1), (url, "u", 0)):
        decoding = Decoding.of("confluent", registry=place)
        Schemas.away = True
        archiver = Archiver(storage, topic, tmp_path / name, decoding=decoding)
        if place == url:
            with pytest.raises(StoreUnavailable, match=r"the schema registry at 127\.0\.0\.1:.* answers 503") as told:
                archiver.archive((0, 0, 7))
            assert "secret" not in str(told.value)
        Schemas.away = False
        assert archiver.archive((0, 0, 7 + more)) == 4 + more
        found = rows(tmp_path / name)
        assert [row.get("id") for row in found] == [7, 7, None, 8, 7][: 4 + more]
        assert [row.get("gate") for row in found] == [None, "B4", None, None, None][: 4 + more]
        why = dead(tmp_path / name)
        assert why == {
            2: "column 'id' of the table is int64, the value's is string: "
            "field id: text 'x' does not fit a column of int64",
            3: "there is no schema of id 99",
            4: "not in Confluent's wire format: it begins with 0 and a schema's id of four bytes",
        }
    assert DeltaTable(tmp_path / "t").to_pyarrow_table().column("kind").to_pylist().count("JET") == 1
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("schema", "more", "message"),
    [
        ("nowhere.avsc", {}, "nowhere.avsc: No such file or directory"),
        ("x.txt", {}, "expected json, variant, variant-struct, confluent, or a file that ends in .avsc"),
        ("confluent", {}, "--schema confluent and --schema-registry go together"),
        ("json", {"registry": "x"}, "--schema confluent and --schema-registry go together"),
        ("confluent", {"registry": "/nowhere"}, "there is no such folder"),
    ],
)
def test_schemas_that_cannot_be(schema: str, more: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Decoding.of(schema, **more)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.avsc", "{}", "is not an Avro schema that columns can be made of"),
        ("x.avsc", '"string"', "is no record"),
        ("x.json", "[", "is not a JSON Schema that columns can be made of"),
        ("x.json", '{"type": "string"}', "describes no object"),
        ("x.proto", "message {", "is not a .proto file that can be compiled: 1:9: Expected message name"),
        ("x.desc", "xx", "has no message that columns can be made of"),
    ],
)
def test_schema_files_that_are_none(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(OptionError, match=message):
        Decoding.of(str(tmp_path / name))


def test_much_json_is_decoded_by_the_batch() -> None:
    values = [b'{"n": %d, "text": "x"}' % number for number in range(5_000)]
    values[4_321] = b"bad"
    found = Decoding.of("json").decoder().decode(pa.array(values, pa.binary()), pa.schema([]))
    assert list(found.reasons) == [4_321]
    assert found.columns.field("n").to_pylist() == [*range(4_321), None, *range(4_322, 5_000)]


def test_one_topic_never_changes_the_table_of_another(storage: BareStorage, tmp_path: Path) -> None:
    contents = {
        "typed-a": [b'{"a": 1}', b'{"same": 1}'],
        "typed-b": [b'{"b": "x"}', b'{"same": "text"}', b"null"],
        "typed-c": [b'{"same": {"c": 1.5}}'],
    }
    archivers = {}
    for name, values in contents.items():
        made = storage.create_topic(name)
        send(storage, made, values)
        archivers[name] = Archiver(storage, made, tmp_path / name, decoding=Decoding.of("json"))
    for end in (1, 3):
        for name, archiver in archivers.items():
            archiver.archive((0, 0, min(end, len(contents[name]))))
    assert rows(tmp_path / "typed-a") == [{"at": 0, "a": 1}, {"at": 1, "same": 1}]
    assert rows(tmp_path / "typed-b") == [{"at": 0, "b": "x"}, {"at": 1, "same": "text"}]
    assert rows(tmp_path / "typed-c") == [{"at": 0, "same": {"c": 1.5}}]
    assert [len(dead(tmp_path / name)) for name in contents] == [0, 1, 0]


def test_names_that_differ_in_case_and_names_that_delta_has_not(
    storage: BareStorage, topic: Topic, tmp_path: Path
) -> None:
    values = [b'{"Id": 2}', b'{"ID": 3}', b'{"a b": 4}', b'{"offset": 5, "value_offset": 6}']
    values.append(b'{"ID": 7, "x": {"A": 1, "a": 2}}')
    send(storage, topic, values)
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    # Two tasks of one batch find different names, and each batch later finds the columns by the table alone.
    assert archiver.archive((0, 0, 1), (0, 1, 2)) == 2
    assert archiver.archive((0, 2, 5)) == 3
    assert rows(tmp_path / "t") == [
        {"at": 0, "Id": 2},
        {"at": 1, "ID_3843971d": 3},
        {"at": 2, "a_x0020_b": 4},
        {"at": 3, "value_offset": 5, "value_value_offset": 6},
        {"at": 4, "ID_3843971d": 7, "x": {"A": 1, "a_ca978112": 2}},
    ]
    assert dead(tmp_path / "t") == {}


def test_a_record_that_cannot_be_written_stops_nothing(
    storage: BareStorage, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data_files.writer

    class Writer:
        """Fails as pyarrow does for what Parquet has not: while a file is being written."""

        def __init__(self, sink: Any, columns: pa.Schema) -> None:
            self._writer = whole(sink, columns)
            self.writer = self._writer.writer  # has the footer once it is closed

        def write_batch(self, batch: pa.RecordBatch, **more: Any) -> None:
            if "n" in batch.schema.names and 666 in batch.column("n").to_pylist():
                raise pa.ArrowNotImplementedError("cannot write it")
            self._writer.write_batch(batch, **more)

        def close(self) -> None:
            self._writer.close()

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

    monkeypatch.setattr(data_files, "writer", Writer)
    send(storage, topic, [b'{"n": %d}' % number for number in range(660, 680)])
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    assert archiver.archive((0, 0, 20)) == 19
    assert dead(tmp_path / "t") == {6: "ArrowNotImplementedError: cannot write it"}
    listed = {Path(path).name for path in DeltaTable(tmp_path / "t").file_uris()}
    assert {path.name for path in (tmp_path / "t").rglob("*.parquet")} == listed, "what failed leaves no files"


def test_a_column_that_delta_refuses_stops_nothing(
    storage: BareStorage, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ArchiveTable.widen

    def widen(self: ArchiveTable, known: pa.Schema, found: Sequence[pa.Schema]) -> bool:
        if any("odd" in one.names for one in found):
            raise TableError(f"{self.place.name} got no more columns: not this one")
        return whole(self, known, found)

    monkeypatch.setattr(ArchiveTable, "widen", widen)
    send(storage, topic, [b'{"n": 1}', b'{"n": 2, "odd": 1}', b'{"m": 3}'])
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    assert archiver.archive((0, 0, 3)) == 2
    assert rows(tmp_path / "t") == [{"at": 0, "n": 1}, {"at": 2, "m": 3}]
    [reason] = dead(tmp_path / "t").values()
    assert reason.startswith("column 'odd': Delta does not take such a column: ")
    # Where it is not the columns, nothing is set aside.
    monkeypatch.setattr(ArchiveTable, "widen", lambda *_: (_ for _ in ()).throw(TableError("not allowed")))
    monkeypatch.setattr(batch, "_refused", lambda *_: {})
    send(storage, topic, [b'{"new": 1}'])
    with pytest.raises(TableError, match="not allowed"):
        Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json")).archive((0, 3, 4))
    assert sorted(dead(tmp_path / "t")) == [1]


def test_tasks_that_find_more_columns_than_a_table_may_have(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    wide = [b"{" + b",".join(b'"k%d_%d": 1' % (row, number) for number in range(600)) + b"}" for row in range(3)]
    send(storage, topic, [*wide, b'{"k0_1": 2}'])
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    assert archiver.archive((0, 0, 1), (0, 1, 2), (0, 2, 4)) == 2
    assert sorted(dead(tmp_path / "t")) == [1, 2]
