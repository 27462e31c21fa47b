"""Tables of `headrace.delta` in the readers that users have: the same rows with every filter, whatever the type."""

import datetime as dt
import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.delta_readers import OPERATORS, READERS, Reader, polars_by_pyarrow

from headrace.client.errors import TableError
from headrace.lakehouse.write.data_files import Statistics
from headrace.spark.sink import delta_options, delta_table
from headrace.spark.sink.delta_table import FileWriter

MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2026, 1, 1, 1, 2, 3, 123_456),
    dt.datetime(2262, 4, 11, 23, 47, 16),
]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 0, 5, 127]),
    "short": (pa.int16(), [-5, 0, 5, 32_767]),
    "int": (pa.int32(), [-5, 0, 5, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 0, 5, 2**63 - 1]),
    "float": (pa.float32(), [-1.5, 0.1, 0.0, 3e38]),
    "double": (pa.float64(), [-1.5, -0.0, 0.0, 1e300]),
    "double with NaN": (pa.float64(), [-1.5, math.nan, 1.0, math.inf]),
    "decimal": (
        pa.decimal128(38, 10),
        [Decimal(-3), Decimal("-1.5"), Decimal("12345678901234567890.0123456789"), Decimal(0)],
    ),
    "string": (pa.string(), ["", "b" * 100, "ä/%=& '\n", "\U0010ffff" * 70]),
    "long string": (pa.string(), ["x" * 5000, "x" * 5001, "y", "z" * 33]),
    "binary": (pa.binary(), [b"", b"\x00\xff", b"\x80abc", b"abc"]),
    "boolean": (pa.bool_(), [True, False, True, False]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(2026, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [one.replace(tzinfo=dt.UTC) for one in MOMENTS]),
    "timestamp_ntz": (pa.timestamp("us"), MOMENTS),
}


def write(path: Path, rows: list[pa.RecordBatch], partition_by: str = "") -> None:
    """Each batch by a commit of its own."""
    options = delta_options.parse({"path": str(path), "partitionBy": partition_by})
    for batch in rows:
        delta_table.prepare(options, batch.schema)
        writer = FileWriter(options, batch.schema)
        writer.add(batch)
        delta_table.commit(options, batch.schema, writer.finish(), application=None, number=0)


def batches(kind: pa.DataType, values: list[Any]) -> list[pa.RecordBatch]:
    """Two files with values, one of them with nulls, and one with nothing but nulls."""
    parts = [values[:2], [*values[2:], None], [None]]
    numbers = iter(range(100))
    return [
        pa.RecordBatch.from_pydict({"row": [next(numbers) for _ in part], "v": pa.array(part, kind)}) for part in parts
    ]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@pytest.mark.parametrize("name", KINDS)
def test_statistics_change_no_filter(
    name: str, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader's own idea of NaN or of -0.0 is what it finds in a table without statistics."""
    kind, values = KINDS[name]
    rows = batches(kind, values)
    write(tmp_path / "with", rows)
    with monkeypatch.context() as patched:
        patched.setattr(Statistics, "json", lambda self, _: f'{{"numRecords":{self.rows}}}')
        write(tmp_path / "without", rows)
    for value in values:
        if value != value and reader is polars_by_pyarrow:  # noqa: PLR0124
            continue  # it cannot be asked for NaN
        for operator in OPERATORS:
            asked = (operator, pa.scalar(value, kind))
            found = reader(str(tmp_path / "with"), "row", "v", *asked)
            assert found == reader(str(tmp_path / "without"), "row", "v", *asked), asked
            if operator == "is null":
                assert found == [4, 5]
            if operator == "=" and value == value and name != "double with NaN":  # noqa: PLR0124
                assert [values[row] for row in found] == [one for one in values if one == value]


def test_a_column_that_files_lack_is_found_null(tmp_path: Path) -> None:
    one = pa.RecordBatch.from_pydict({"row": [0], "a": ["x"]})
    two = pa.RecordBatch.from_pydict({"row": [1, 2], "a": ["y", "z"], "v": [5, None]})
    write(tmp_path / "t", [one])
    options = delta_options.parse({"path": str(tmp_path / "t"), "mergeSchema": "true"})
    delta_table.prepare(options, two.schema)
    writer = FileWriter(options, two.schema)
    writer.add(two)
    delta_table.commit(options, two.schema, writer.finish(), application=None, number=0)
    for reader in READERS:
        found = {asked: reader(str(tmp_path / "t"), "row", "v", asked, pa.scalar(5)) for asked in OPERATORS}
        assert found == {"=": [1], "<": [], ">": [], "is null": [0, 2], "is not null": [1]}, reader.__name__
        assert reader(str(tmp_path / "t"), "row", "a", "=", pa.scalar("x")) == [0]


FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["null", "a/b", "x" * 300])
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), FLOATS),
    (pa.decimal128(38, 4), st.decimals(-(10**30), 10**30, places=4)),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=6)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.list_(pa.float64()), st.lists(st.none() | FLOATS, max_size=3)),
    (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(TEXT, st.integers(0, 9), max_size=2).map(lambda d: list(d.items())),
    ),
    (
        pa.struct([("a", pa.string()), ("b", pa.int32())]),
        st.fixed_dictionaries({"a": st.none() | TEXT, "b": st.integers(0, 9)}),
    ),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[str]]:
    """A batch, and names of columns by which it is partitioned."""
    count = draw(st.integers(1, 12))
    columns: dict[str, Any] = {"row": pa.array(range(count))}
    flat = []
    for place, (kind, values) in enumerate(draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))):
        chosen = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        columns[f"c{place}"] = pa.array(chosen, kind)
        if not pa.types.is_nested(kind):
            flat.append(f"c{place}")
    names = draw(st.lists(st.sampled_from(flat), unique=True)) if flat else []
    return pa.RecordBatch.from_pydict(columns), names


def exact(value: Any) -> Any:
    """Something that is equal where values are the same: floats by their bits."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack("d", value)
    if isinstance(value, dict):
        return {name: exact(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo is not None else value


def read(path: Path) -> Iterator[pa.Table]:
    table = DeltaTable(path)
    yield table.to_pyarrow_table()
    yield pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables())
def test_what_is_written_comes_back_or_is_refused(given_rows: tuple[pa.RecordBatch, list[str]]) -> None:
    rows, names = given_rows
    wanted = [exact(row) for row in rows.to_pylist()]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        try:
            write(path, [rows], ",".join(names))
        except TableError as error:
            assert "cannot be a partition's value" in str(error)  # noqa: PT017  # what is refused differs by value
            assert DeltaTable(path).to_pyarrow_table().num_rows == 0
            return
        for found in read(path):
            listed = sorted(found.select(rows.schema.names).to_pylist(), key=lambda row: row["row"])
            assert [exact(row) for row in listed] == wanted
        files = DeltaTable(path).get_add_actions(flatten=True)
        assert sum(pa.table(files).column("num_records").to_pylist()) == rows.num_rows


def test_partitions_in_polars(tmp_path: Path) -> None:
    """It goes by the folders' names; of a value that is too long for one it has none, and refuses the table."""
    texts = ["a", "001", "null", "é%/=", "\n", None]
    doubles = [1.5, math.inf, -0.0, math.nan, 0.0, None]
    columns = {"row": list(range(len(texts))), "v": texts, "w": doubles}
    write(tmp_path / "t", [pa.RecordBatch.from_pydict(columns)], "v,w")
    found = pl.scan_delta(tmp_path / "t").sort("row").collect()
    assert found["v"].to_list() == texts
    assert [exact(one) for one in found["w"].to_list()] == [exact(one) for one in doubles]
