"""A client of Spark Connect reads and writes topics and tables as a classic session does."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def remote(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> Iterator["SparkSession"]:
    from pyspark.sql.connect.session import SparkSession as RemoteSession  # noqa: PLC0415

    from headrace.spark.pipelines import run  # noqa: PLC0415

    variables = run.connect_variables(spark)
    monkeypatch.setenv(run.CONNECT_TOKEN, variables[run.CONNECT_TOKEN])
    session = RemoteSession.builder.remote(variables["SPARK_REMOTE"]).getOrCreate()
    yield session  # type: ignore[misc]  # the two have the same methods and no common type
    session.stop()


def test_a_client_reads_and_writes_topics_and_tables(remote: "SparkSession", broker: Server, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(name, 2) for name in ("remote-in", "remote-out")]).values():
        future.result(60)
    where = {"kafka.bootstrap.servers": broker.kafka}
    rows = remote.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(2 * id AS STRING) AS value")
    rows.write.format("headrace").options(**where, topic="remote-in").mode("append").save()
    from_start = {**where, "subscribe": "remote-in", "startingOffsets": "earliest"}
    found = remote.read.format("headrace").options(**from_start).load()
    assert {(bytes(row.key), bytes(row.value)) for row in found.select("key", "value").collect()} == {
        (b"%d" % n, b"%d" % (2 * n)) for n in range(100)
    }
    stream = remote.readStream.format("headrace").options(**from_start).load()
    numbers = stream.selectExpr("key", "CAST(CAST(value AS STRING) AS INT) + 1 AS n")
    for name, frame, options in (
        ("headrace.delta", numbers.select("n"), {"path": str(tmp_path / "table")}),
        ("headrace", numbers.selectExpr("key", "CAST(n AS STRING) AS value"), {**where, "topic": "remote-out"}),
    ):
        query = frame.writeStream.format(name).options(**options)
        query = query.option("checkpointLocation", str(tmp_path / name))
        assert query.trigger(availableNow=True).start().awaitTermination(240)
    odd = list(range(1, 200, 2))
    assert sorted(DeltaTable(tmp_path / "table").to_pyarrow_table().column("n").to_pylist()) == odd
    back = remote.read.format("headrace").options(**where, subscribe="remote-out").load()
    assert sorted(int(bytes(row.value)) for row in back.select("value").collect()) == odd
