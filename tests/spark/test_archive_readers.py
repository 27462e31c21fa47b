"""An archive's tables in the readers that users have: a filter of any column finds its rows. Without Spark."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.harness.delta_readers import READERS, Reader
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver

from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.write import data_files, maintenance
from headrace.lakehouse.write.iceberg import IcebergName, IcebergTwin
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import COLUMNS, VARIANT, ArchiveTable, WrittenFile, add_action
from headrace.records.build import build
from headrace.topics.model import Topic

from .conftest import DAY

VALUES: list[dict[str, Any]] = [
    {"a": 1, "b": "x"},
    {"a": 2, "b": "é" * 50, "c": True, "d": 1.5},
    {"a": 3, "c": False, "d": -0.5},
]
SKIPPING = "delta.dataSkippingStatsColumns"


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    name = "readers-" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    created = storage.create_topic(name[:200])
    for number, value in enumerate(VALUES):
        record = (b"k%d" % number, json.dumps(value).encode(), DAY + number, ())
        storage.append_batch(created, 0, bytes(build([record])))
    return created


@pytest.fixture
def table(storage: BareStorage, topic: Topic, tmp_path: Path) -> Path:
    """A file for each record; later ones have more columns."""
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    for offset in range(len(VALUES)):
        archiver.archive((0, offset, offset + 1))
    return tmp_path / "t"


def _check(table: Path, reader: Reader) -> None:
    first = dt.datetime.fromtimestamp(DAY / 1000, dt.UTC)
    for column, operator, value, wanted in (
        ("a", "=", 2, [1]),
        ("a", ">", 1, [1, 2]),
        ("b", "=", "é" * 50, [1]),
        ("b", "is null", "", [2]),
        ("c", "=", True, [1]),
        ("c", "is null", True, [0]),
        ("c", "is not null", True, [1, 2]),
        ("d", "<", 0.0, [2]),
        ("d", "is null", 0.0, [0]),
        ("key", "=", b"k1", [1]),
        ("timestampType", "=", 0, [0, 1, 2]),
        ("timestamp", "=", first, [0]),
        ("offset", "<", 1, [0]),
    ):
        kind = DeltaTable(table).schema().to_arrow()
        asked = pa.scalar(value, pa.schema(kind).field(column).type)
        assert reader(str(table), "offset", column, operator, asked) == wanted, (reader.__name__, column, operator)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_filters_find_rows_of_every_file(table: Path, reader: Reader) -> None:
    _check(table, reader)
    maintenance.compact(ArchiveTable(Place.of(str(table))))
    assert len(DeltaTable(table).file_uris()) == 1
    _check(table, reader)


def test_a_table_of_an_earlier_version_is_mended(table: Path) -> None:
    """Its files have bounds of five columns: readers are no longer asked to skip by others."""
    delta = DeltaTable(table)
    actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    known = ("topic", "partition", "offset", "timestamp", "topicId")
    old = Path(f"{table}-old")
    DeltaTable.create(str(old), delta.schema())
    for action in actions:
        target = old / action["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((table / action["path"]).read_bytes())
    files = [
        WrittenFile(
            row["path"],
            row["min.topic"],
            row["min.partition"],
            row["min.offset"],
            row["max.offset"] + 1,
            row["num_records"],
            row["size_bytes"],
            DAY + row["min.offset"],
            DAY + row["max.offset"],
        )
        for row in actions
    ]
    made = DeltaTable(old)
    made.create_write_transaction(
        [add_action(actions[0]["min.topicId"], file) for file in files], "append", made.schema()
    )
    assert READERS[0](str(old), "offset", "a", "=", pa.scalar(2)) == []
    ArchiveTable(Place.of(str(old)))
    assert DeltaTable(old).metadata().configuration[SKIPPING] == ",".join(known)
    version = DeltaTable(old).version()
    for reader in READERS:
        _check(old, reader)
    ArchiveTable(Place.of(str(old)))
    assert DeltaTable(old).version() == version


def test_statistics_have_every_column(table: Path) -> None:
    found: dict[int, dict[str, Any]] = {}
    for path in sorted((table / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                stats = json.loads(action["add"]["stats"])
                found[stats["minValues"]["offset"]] = stats
    assert (found[1]["minValues"]["a"], found[1]["maxValues"]["d"], found[1]["maxValues"]["c"]) == (2, 1.5, True)
    assert found[1]["maxValues"]["b"] == "é" * 32 + "\U0010ffff"
    assert found[2]["nullCount"] == dict.fromkeys(found[2]["nullCount"], 0) | {"b": 1}
    assert set(found[2]["nullCount"]) == {*COLUMNS.names, "a", "b", "c", "d"} - {"headers"}


def test_times_that_the_log_cannot_hold_stop_nothing() -> None:
    file = WrittenFile("f", "t", 0, 0, 1, 1, 1, -(2**60), 2**60)
    stats = json.loads(add_action("id", file).stats)
    assert stats["minValues"]["timestamp"] == "0001-01-01T00:00:00.000Z"
    assert stats["maxValues"]["timestamp"] == "9999-12-31T23:59:59.999Z"


def test_daft_reads_the_iceberg_table(storage: BareStorage, topic: Topic, tmp_path: Path) -> None:
    """It finds columns by the IDs in the files only, in those before a column came and in those after."""
    sql = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    archiver = Archiver(storage, topic, tmp_path / "t", decoding=Decoding.of("json"))
    for offset in range(len(VALUES)):
        archiver.archive((0, offset, offset + 1))
        table = ArchiveTable(Place.of(str(tmp_path / "t")))
        twin = IcebergTwin(IcebergName("lake:archive.t", sql), table)
        twin.sync(table.snapshot())
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    found = load_catalog("lake", **sql).load_table("archive.t")
    wanted = [{"offset": number, **{name: one.get(name) for name in "abcd"}} for number, one in enumerate(VALUES)]
    names = ["offset", "a", "b", "c", "d"]
    assert sorted(found.scan().to_arrow().select(names).to_pylist(), key=lambda row: row["offset"]) == wanted
    assert daft.read_iceberg(found).select(*names).sort("offset").to_pylist() == wanted
    assert daft.read_iceberg(found).where("offset > 0").count_rows() == 2
    for path in DeltaTable(tmp_path / "t").file_uris():
        ids = dict(data_files.field_ids(pq.read_schema(path)))
        assert ids[("headers", "element", "key")] == 11
        assert all(found.schema().find_column_name(number) == ".".join(names) for names, number in ids.items())


def test_field_ids_of_nested_columns() -> None:
    kind = pa.struct([("x", pa.int64()), ("l", pa.list_(pa.struct([("y", pa.string())])))])
    columns = pa.schema([*COLUMNS, ("s", kind), ("m", pa.map_(pa.string(), pa.int64())), ("v", VARIANT)])
    found = {".".join(names): number for names, number in data_files.field_ids(data_files.with_field_ids(columns))}
    assert [found[name] for name in COLUMNS.names] == list(range(1, 10))
    assert {name: number for name, number in found.items() if number > 9} == {
        "headers.element": 10,
        "headers.element.key": 11,
        "headers.element.value": 12,
        "s": 13,
        "s.x": 14,
        "s.l": 15,
        "s.l.element": 16,
        "s.l.element.y": 17,
        "m": 18,
        "m.key": 19,
        "m.value": 20,
        "v": 21,
        "v.metadata": 22,
        "v.value": 23,
    }
    assert data_files.with_field_ids(columns).equals(columns, check_metadata=False)
