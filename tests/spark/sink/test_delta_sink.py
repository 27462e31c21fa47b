"""`format("headrace.delta")`: rows into a Delta table once, whatever comes again; read by delta-rs, not by Spark."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from tests.harness.store import object_store
from tests.spark.conftest import DAY, records, run_out

from headrace.client.errors import OptionError, TableError
from headrace.spark.sink import delta_options, delta_table
from headrace.spark.sink.delta_options import DeltaOptions
from headrace.spark.sink.delta_table import FileWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.harness.storage import BareStorage

SCHEMA = pa.schema([("n", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
MONDAY = dt.date(2026, 11, 23)
NOON = dt.datetime(2026, 11, 23, 12, 0, 0, 123_456, dt.UTC)


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """The options of a bucket `lake` in an object store of this test's own."""
    with object_store() as store:
        yield store.options


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "n": list(range(start, stop)),
            "day": [MONDAY + dt.timedelta(days=n % 2) for n in range(start, stop)],
            "at": [NOON + dt.timedelta(seconds=n) for n in range(start, stop)],
            "text": [None if n % 3 else f"text {n}" for n in range(start, stop)],
        },
        schema=SCHEMA,
    )


def write(options: DeltaOptions, start: int, stop: int, number: int, **more: Any) -> bool:
    delta_table.prepare(options, SCHEMA)
    writer = FileWriter(options, SCHEMA)
    writer.add(rows(start, stop))
    return delta_table.commit(options, SCHEMA, writer.finish(), application="app", number=number, **more)


def numbers(options: DeltaOptions) -> list[int]:
    table = options.place.delta()
    return sorted(table.to_pyarrow_table(columns=["n"]).column("n").to_pylist())


def test_a_batch_that_comes_again_is_left_out(scratch: Path) -> None:
    options = delta_options.parse({"path": str(scratch / "t")})
    assert write(options, 0, 100, 0)
    assert write(options, 100, 200, 1)
    assert not write(options, 100, 200, 1)
    assert not write(options, 0, 100, 0)
    assert numbers(options) == list(range(200))
    files = {path.name for path in (scratch / "t").glob("*.parquet")}
    assert len(files) == 2, "the files of a batch that is there already are deleted"
    assert write(options, 5, 8, 2, overwrite=True)
    assert numbers(options) == [5, 6, 7]


def test_an_attempt_that_lost_leaves_no_row(scratch: Path) -> None:
    """As speculation leaves it: two attempts have written everything, and Spark hands the driver one of them."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from headrace.spark.sink.delta_sink import DeltaDataSource, Written  # noqa: PLC0415

    source = DeltaDataSource({"path": str(scratch / "t"), "partitionBy": "text"})
    writer = source.streamWriter(from_arrow_schema(SCHEMA), overwrite=False)
    attempts = [writer.write(iter([rows(0, 50)])) for _ in range(2)]
    for attempt in attempts:
        assert isinstance(attempt, Written)
        attempt.query = "query"
    writer.commit([attempts[1]], 0)
    # As if the store had taken the commit and its answer had been lost: the same files again.
    writer.commit([attempts[1]], 0)
    assert numbers(delta_options.parse({"path": str(scratch / "t")})) == list(range(50))


def test_statistics_prune_and_lose_nothing(scratch: Path) -> None:
    options = delta_options.parse({"path": str(scratch / "t"), "partitionBy": "day"})
    for number in range(4):
        write(options, 100 * number, 100 * number + 100, number)
    table = options.place.delta()
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert len(actions) == 8
    assert {(one["partition.day"], one["num_records"]) for one in actions} == {
        (MONDAY, 50),
        (MONDAY + dt.timedelta(days=1), 50),
    }
    assert all(one["null_count.text"] in {33, 34, 32} for one in actions)
    dataset = table.to_pyarrow_dataset()
    last = NOON + dt.timedelta(seconds=399)
    assert dataset.to_table(filter=ds.field("at") >= pa.scalar(last, pa.timestamp("us", "UTC"))).num_rows == 1
    assert len(list(dataset.get_fragments(filter=ds.field("n") > 350))) == 2


def test_a_bucket_is_as_good_as_a_folder(bucket: dict[str, str]) -> None:
    storage = {f"storage.{name}": value for name, value in bucket.items()}
    options = delta_options.parse({"path": "s3://lake/table", **storage})
    assert write(options, 0, 50, 0)
    assert not write(options, 0, 50, 0)
    assert write(options, 50, 60, 1)
    assert numbers(options) == list(range(60))
    wrong = delta_options.parse({"path": "s3://nowhere/table", **storage})
    with pytest.raises(TableError, match=r"s3://nowhere/table cannot be a Delta table: .*NoSuchBucket"):
        write(wrong, 0, 1, 0)


def test_a_table_of_another_shape_is_refused_and_may_grow(scratch: Path) -> None:
    options = delta_options.parse({"path": str(scratch / "t")})
    delta_table.prepare(options, SCHEMA)
    wider = SCHEMA.append(pa.field("more", pa.float64()))
    for schema, message in (
        (pa.schema([("n", pa.string())]), "column 'n' of .* is .*long.*, the rows have .*string"),
        (wider, "has no column 'more': set mergeSchema=true"),
    ):
        with pytest.raises(TableError, match=message):
            delta_table.prepare(options, schema)
    with pytest.raises(TableError, match="is partitioned by nothing"):
        delta_table.prepare(delta_options.parse({"path": str(scratch / "t"), "partitionBy": "day"}), SCHEMA)
    growing = delta_options.parse({"path": str(scratch / "t"), "mergeSchema": "true"})
    delta_table.prepare(growing, wider)
    delta_table.commit(growing, wider, [], application=None, number=0)
    assert [field.name for field in growing.place.delta().schema().fields][-1] == "more"
    (scratch / "file").write_text("in the way")
    with pytest.raises(TableError, match="cannot be a Delta table"):
        delta_table.prepare(delta_options.parse({"path": str(scratch / "file")}), SCHEMA)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "'path' must name"),
        ({"path": "t", "mergeShema": "true"}, "did you mean 'mergeSchema'"),
        ({"path": "t", "txnAppId": "a"}, "go together"),
        ({"path": "t", "txnAppId": "a", "txnVersion": "x"}, "whole number"),
    ],
)
def test_mistakes_in_options(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        delta_options.parse(given)


@pytest.mark.spark
def test_a_query_writes_every_batch_once(spark: "SparkSession", storage: "BareStorage", scratch: Path) -> None:
    topic = storage.create_topic("delta-sink", partitions=2)
    for partition in (0, 1):
        for first in range(0, 60, 20):
            storage.append(topic, partition, records(20, first))

    def run() -> None:
        frame = (
            spark.readStream.format("headrace")
            .option("redis", storage.url)
            .option("subscribe", "delta-sink")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 50)
            .load()
            .selectExpr("partition", "offset", "timestamp", "CAST(value AS STRING) AS value")
        )
        writer = frame.writeStream.format("headrace.delta").option("checkpointLocation", str(scratch / "checkpoint"))
        run_out(writer, str(scratch / "t"))

    run()
    # As after a crash between the table's commit and Spark's own note of it: the last batch comes again.
    commits = sorted((scratch / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    run()
    storage.append(topic, 1, records(5, 60))
    run()
    found = DeltaTable(scratch / "t").to_pyarrow_table().to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in found) == [
        *((0, offset) for offset in range(60)),
        *((1, offset) for offset in range(65)),
    ]
    assert {row["timestamp"].timestamp() * 1000 - DAY - row["offset"] for row in found} == {0}

    frame = spark.range(10).selectExpr("id AS n")
    for _ in range(2):
        writer = frame.write.format("headrace.delta").option("txnAppId", "nightly").option("txnVersion", 7)
        writer.mode("append").save(str(scratch / "batch"))
    assert DeltaTable(scratch / "batch").to_pyarrow_table().num_rows == 10
    frame.write.format("headrace.delta").mode("overwrite").save(str(scratch / "batch"))
    assert DeltaTable(scratch / "batch").to_pyarrow_table().num_rows == 10
    with pytest.raises(Exception, match=r"column 'n' of .* the rows have"):
        spark.range(1).selectExpr("CAST(id AS STRING) AS n").write.format("headrace.delta").mode("append").save(
            str(scratch / "batch")
        )
