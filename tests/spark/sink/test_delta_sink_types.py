"""`format("headrace.delta")` from Spark: rows of every type come back, and what Delta does not have is refused."""

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.client.errors import TableError
from headrace.spark.sink import partition_values
from headrace.spark.sink.delta_sink import check_columns
from headrace.spark.sink.delta_table import DataFile, check_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = """
    id, CAST(id AS BYTE) AS b, CAST(id AS SHORT) AS s, CAST(id AS INT) AS i, CAST(id AS FLOAT) AS f,
    IF(id % 3 = 0, double('NaN'), IF(id % 3 = 1, -0.0D, 0.0D)) AS d, CAST(id AS DECIMAL(38, 10)) AS n,
    IF(id = 5, NULL, concat('é/', id)) AS t, CAST(concat('x', id) AS BINARY) AS x, id % 2 = 0 AS o,
    date_add(DATE'1969-12-30', CAST(id AS INT)) AS day, timestamp_micros(id - 3) AS at,
    CAST('1969-12-31 23:59:59.999999' AS TIMESTAMP_NTZ) AS ntz,
    array(id, NULL) AS l, map('k', id) AS m, named_struct('a', id, 'b', named_struct('c', CAST(id AS STRING))) AS r
"""


@pytest.mark.spark
def test_rows_of_every_type_come_back(spark: "SparkSession", scratch: Path) -> None:
    frame = spark.range(12).selectExpr(*_columns(ALL))
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        wanted = _rows(frame.toArrow())
        for number, names in enumerate(("", "d", "t,x", "at,ntz,day", "b,s,i,f,n,o")):
            path = str(scratch / f"t{number}")
            writer = frame.write.format("headrace.delta").mode("append")
            (writer.option("partitionBy", names) if names else writer).save(path)
            assert _rows(DeltaTable(path).to_pyarrow_table()) == wanted, names
            if not names:
                assert _rows(spark.read.parquet(*DeltaTable(path).file_uris()).toArrow()) == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.spark
def test_features_that_delta_lacks_are_refused_before_any_data_moves(spark: "SparkSession", scratch: Path) -> None:
    for column, message in (
        ("interval '1' day AS v", "column 'v' is interval day, a type that Delta tables do not have"),
        ("array(interval '1' month) AS v", "column 'v.element' is interval month"),
        ("TIME'12:00:00' AS v", r"column 'v' is time\(6\)"),
        ("NULL AS v", "column 'v' is void"),
        ("parse_json('1') AS v", "column 'v' is variant"),
        ("id AS `a b`", "column 'a b' has the character ' ' in its name"),
        ("map('k', named_struct('a=b', 1)) AS v", "column 'v.value.a=b' has the character '='"),
        ("named_struct('a', 1, 'A', 2) AS v", "columns 'v.a' and 'v.A' have one name for Delta"),
    ):
        frame = spark.range(1).selectExpr("id", column)
        with pytest.raises(Exception, match=message):
            frame.write.format("headrace.delta").mode("append").save(str(scratch / "t"))
        assert not (scratch / "t").exists()
    years = spark.range(3).selectExpr("id", "timestamp_seconds(253402300800 + id) AS v")
    years.write.format("headrace.delta").mode("append").save(str(scratch / "years"))
    found = DeltaTable(scratch / "years").to_pyarrow_table().column("v").cast(pa.int64()).to_pylist()
    assert sorted(found) == [253_402_300_800_000_000 + second * 1_000_000 for second in range(3)]
    with pytest.raises(Exception, match=r"column 'v' has the time .* years 1 to 9999"):
        years.write.format("headrace.delta").mode("append").option("partitionBy", "v").save(str(scratch / "parts"))
    assert not list((scratch / "parts").rglob("*.parquet"))
    everything = spark.range(3).write.format("headrace.delta").mode("append").option("partitionBy", "id")
    with pytest.raises(Exception, match="names all columns"):
        everything.save(str(scratch / "all"))


def test_rows_that_were_lost_fail_the_write() -> None:
    files = [DataFile("a", 1, (), "{}", 5), DataFile("b", 1, (), "{}", 4)]
    check_rows(files, 9)
    with pytest.raises(TableError, match=r"10 rows were received and 9 were written to 2 files: nothing was committed"):
        check_rows(files, 10)


def test_a_writer_that_loses_rows_fails(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from headrace.spark.sink import delta_table  # noqa: PLC0415
    from headrace.spark.sink.delta_sink import DeltaDataSource  # noqa: PLC0415

    rows = pa.RecordBatch.from_pydict({"n": [1, 2, 3], "p": ["a", "b", "a"]})
    source = DeltaDataSource({"path": str(scratch / "t"), "partitionBy": "p"})
    writer = source.writer(from_arrow_schema(rows.schema), overwrite=False)
    split = partition_values.split
    monkeypatch.setattr(delta_table, "split", lambda *given: list(split(*given))[1:])
    with pytest.raises(TableError, match="3 rows were received and 1 were written"):
        writer.write(iter([rows]))
    assert not list((scratch / "t").rglob("*.parquet"))


def test_more_partitions_than_files_that_stay_open(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.spark.sink import delta_options, delta_table  # noqa: PLC0415

    monkeypatch.setattr(delta_table, "MOST_OPEN", 3)
    monkeypatch.setattr(delta_table, "HELD_BYTES", 1000)
    options = delta_options.parse({"path": str(scratch / "t"), "partitionBy": "p"})
    rows = [pa.RecordBatch.from_pydict({"n": range(k, k + 70), "p": [n % 7 for n in range(70)]}) for k in (0, 70, 140)]
    delta_table.prepare(options, rows[0].schema)
    writer = delta_table.FileWriter(options, rows[0].schema)
    for batch in rows:
        writer.add(batch)
        assert len(writer._open) <= 3  # noqa: SLF001
    delta_table.commit(options, rows[0].schema, writer.finish(), application=None, number=0)
    found = options.place.delta().to_pyarrow_table()
    assert sorted(found.column("n").to_pylist()) == list(range(210))


def test_names_of_one_level_only_have_to_differ() -> None:
    from pyspark.sql import types  # noqa: PLC0415

    inner = types.StructType([types.StructField("a", types.LongType())])
    check_columns(types.StructType([types.StructField("a", inner), types.StructField("b", inner)]))
    with pytest.raises(TableError, match="no character"):
        check_columns(types.StructType([types.StructField("", types.LongType())]))


def _columns(text: str) -> list[str]:
    """The columns of a SELECT, at commas outside of parentheses."""
    found, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def _rows(table: pa.Table) -> list[str]:
    """Rows in order, as texts: NaN is equal to itself there, and -0.0 is not 0.0."""
    rows = sorted(table.select(sorted(table.column_names)).to_pylist(), key=lambda row: row["id"])
    for row in rows:
        row["at"] = row["at"].astimezone(dt.UTC).isoformat()
        row["m"] = list(row["m"].items()) if isinstance(row["m"], dict) else row["m"]
    return [repr(row) for row in rows]
