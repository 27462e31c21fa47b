"""JSON in a VARIANT column: Spark's own parser of JSON into VARIANT is what it is held against."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.storage import BareStorage
from tests.spark.bare_archiver import Archiver

from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.variant import STRUCT, VariantDecoder
from headrace.lakehouse.write import maintenance
from headrace.lakehouse.write.location import Place
from headrace.lakehouse.write.table import VARIANT, ArchiveTable
from headrace.records.build import build

from .conftest import DAY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = st.text(st.characters(codec="utf-8"), max_size=80)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=20,
)
EDGES = [
    *(f"{sign}{(1 << bits) + more}" for bits, more, sign in itertools.product((7, 15, 31, 63), (-1, 0), ("", "-"))),
    *(f"{sign}{'9' * digits}" for digits, sign in itertools.product((19, 38), ("", "-"))),
    *("0", "-0", "-0.0", "0.5", "-0.5", "1.10", "1e3", "1.5e300", "0." + "0" * 37 + "1"),
    *(f"{'9' * before}.{'9' * behind}" for before, behind in ((1, 8), (1, 9), (9, 9), (9, 10), (1, 37))),
    *(json.dumps("x" * length) for length in (0, 63, 64, 300)),
    *(json.dumps("é" * length) for length in (31, 32)),
    *(json.dumps([number] * length) for number, length in ((1, 255), (1, 256), (1 << 62, 8_000))),
    json.dumps({f"k{number}": number for number in range(300)}),
    json.dumps({f"k{number:05}" * 20: [{"k00000" * 20: number}] for number in range(700)}),
    '{"b": {"c": 1, "a": 2}, "a": {"b": 3, "": 4}, "aa": 5, "B": 6, "\\u00e9": 7}',
    ' { "spaced" : [ 1 , 2 ] }\n',
]

BEYOND = [
    "9" * 39,
    "1E-400",
    "0." + "1" * 39,
    f"9.{'9' * 38}",
    "1e999",
    "[1, -1e999]",
    '{"a": 0.1234567890123456789e1}',
]
"""Numbers that neither a decimal nor a double is."""


def test_numbers_that_would_be_changed_are_set_aside() -> None:
    values = [*BEYOND, "1"]
    decoded = VariantDecoder(plain=True).decode(pa.array([text.encode() for text in values]), pa.schema([]))
    assert sorted(decoded.reasons) == list(range(len(BEYOND)))


def written(folder: Path, texts: Sequence[str], kind: pa.DataType = VARIANT) -> str:
    """A Parquet file with the texts, and what our encoder makes of them."""
    decoded = VariantDecoder(plain=kind == STRUCT).decode(pa.array([text.encode() for text in texts]), pa.schema([]))
    assert decoded.reasons == {}
    found = pa.table({"n": range(len(texts)), "text": texts, "json": decoded.columns.field("json")})
    pa.parquet.write_table(found, folder / "t.parquet")
    return str(folder / "t.parquet")


def as_spark_reads(spark: "SparkSession", path: str) -> list[tuple[Any, ...]]:
    """By row: what our value is, its type, and what Spark makes of the text, in the same words."""
    spark.read.schema("n LONG, text STRING, json VARIANT").parquet(path).createOrReplaceTempView("variants")
    query = (
        "SELECT to_json(json), schema_of_variant(json), to_json(own), schema_of_variant(own) "
        "FROM (SELECT n, json, parse_json(text) AS own FROM variants) ORDER BY n"
    )
    return [tuple(row) for row in spark.sql(query).collect()]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [VARIANT, STRUCT], ids=["variant", "struct"])
def test_spark_reads_what_its_own_parser_would_have_made(
    spark: "SparkSession", tmp_path: Path, kind: pa.DataType
) -> None:
    generated: list[str] = []

    @settings(max_examples=300, database=None, deadline=None, derandomize=True)
    @given(VALUES)
    def generate(value: Any) -> None:
        generated.append(json.dumps(value, ensure_ascii=len(generated) % 2 == 0))

    generate()
    # What Spark's parser changes, ours sets aside.
    whole = pa.array([text.encode() for text in generated])
    changed = VariantDecoder(plain=True).decode(whole, pa.schema([])).reasons
    texts = EDGES + [text for row, text in enumerate(generated) if row not in changed]
    assert len(texts) > 300
    for text, (ours, our_type, own, own_type) in zip(
        texts, as_spark_reads(spark, written(tmp_path, texts, kind)), strict=True
    ):
        assert (ours, our_type) == (own, own_type), text[:200]


def test_a_column_holds_any_json_and_the_rest_is_stored_separately(storage: BareStorage, tmp_path: Path) -> None:
    topic = storage.create_topic("variants")
    values = [
        b"older",
        b'{"a": 1}',
        None,
        b"[1.5, null]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"1e999",
        b'"last"',
        b"",
    ]
    storage.append_batch(topic, 0, bytes(build([(None, value, DAY, ()) for value in values])))
    path = tmp_path / "t"
    assert Archiver(storage, topic, path).archive((0, 0, 1)) == 1
    assert Archiver(storage, topic, path, decoding=Decoding.of("variant")).archive((0, 0, 6)) == 4
    # What a table has once, it keeps.
    assert Archiver(storage, topic, path, decoding=Decoding.of("variant-struct")).archive((0, 0, 11)) == 1
    table = DeltaTable(path)
    assert [str(field.type) for field in table.schema().fields if field.name == "json"] == ["VariantType()"]
    assert table.protocol().reader_features == ["variantType"]
    dead = DeltaTable(f"{path}_dlq").to_pyarrow_table().sort_by("offset")
    reasons = dict(zip(dead.column("offset").to_pylist(), dead.column("reason").to_pylist(), strict=True))
    assert list(reasons) == [5, 6, 7, 8, 10]
    assert reasons[7] == "the value is nested deeper than 200 levels"
    assert reasons[8] == "the number 1e999 has more digits than a double keeps, or is beyond doubles"

    def archived() -> list[tuple[int, bytes | None]]:
        query = 'SELECT "offset", json.value FROM read_parquet(?, union_by_name = true) ORDER BY 1'
        return duckdb.execute(query, [DeltaTable(path).file_uris()]).fetchall()

    numbers = b"\x03\x02\x00\x06\x07\x20\x01\x0f\x00\x00\x00\x00"
    whole = [(0, None), (1, b"\x02\x01\x00\x00\x02\x0c\x01"), (2, None), (3, numbers), (4, b"\x00"), (9, b"\x11last")]
    assert archived() == whole
    assert maintenance.compact(ArchiveTable(Place.of(str(path)))).before == 3
    assert archived() == whole


def test_a_struct_asks_nothing_of_readers(storage: BareStorage, tmp_path: Path) -> None:
    topic = storage.create_topic("variant-structs")
    storage.append_batch(topic, 0, bytes(build([(None, b'{"a": 1}', DAY, ()), (None, None, DAY, ())])))
    path = tmp_path / "t"
    assert Archiver(storage, topic, path, decoding=Decoding.of("variant-struct")).archive((0, 0, 2)) == 2
    table = DeltaTable(path)
    assert (table.protocol().min_reader_version, table.protocol().reader_features) == (1, None)
    assert table.to_pyarrow_table().sort_by("offset").column("json").to_pylist() == [
        {"metadata": b"\x01\x01\x00\x01a", "value": b"\x02\x01\x00\x00\x02\x0c\x01"},
        None,
    ]
