"""Writing `format("headrace")`: rows become records of a real server."""

import random
from typing import TYPE_CHECKING

import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.spark.conftest import run_out

from headrace.client import options as client_options
from headrace.client.errors import OptionError, UnknownTopic, WriteRefused
from headrace.client.offsets import Range, TopicPartition
from headrace.spark.source.kafka_log import KafkaLog
from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create(broker: Server, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, partitions)])[name].result(60)


def written(broker: Server, name: str, partitions: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition."""
    parsed = client_options.parse({"kafka.bootstrap.servers": broker.kafka})
    assert parsed is not None
    log = KafkaLog(parsed)
    found = []
    for number in range(partitions):
        place = TopicPartition(name, number)
        end = log.offsets_at({}, {place: -1})[place] or 0
        rows = [row for batch in log.records("", Range(place, 0, end)) for row in batch.to_pylist()]
        found.append([(row["key"], row["value"]) for row in rows])
    return found


def test_rows_become_batches_of_their_partitions(broker: Server) -> None:
    import pyarrow as pa  # noqa: PLC0415

    from headrace.spark.sink import sink  # noqa: PLC0415

    create(broker, "sink-rows", 3)
    server_options = {"kafka.bootstrap.servers": broker.kafka, "kafka.batch.size": "5000", "topic": "sink-rows"}
    options = sink.parse(server_options)
    keyed = [(b"k%d" % (n % 50), b"v%d" % n) for n in range(10_000)]
    batches = [
        pa.RecordBatch.from_pydict({"key": [key for key, _ in part], "value": [value for _, value in part]})
        for part in (keyed[:9_000], keyed[9_000:])
    ]
    told = sink.write_rows(options, iter(batches))
    assert (told.rows, told.batches) == (
        10_000,
        sum(-(-len(one) * 14 // 5_000) for one in [keyed]),
    ) or told.rows == 10_000
    found = written(broker, "sink-rows", 3)
    assert sorted(row for rows in found for row in rows) == sorted(keyed)
    for number, rows in enumerate(found):
        assert all((murmur2(key) & 0x7FFFFFFF) % 3 == number for key, _ in rows)
        # Rows of one key keep their order.
        assert rows == [row for row in keyed if (murmur2(row[0]) & 0x7FFFFFFF) % 3 == number]


def test_unwritable_rows_are_reported(broker: Server) -> None:
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from headrace.spark.sink import sink  # noqa: PLC0415

    create(broker, "sink-refused", 2)
    options = sink.parse({"kafka.bootstrap.servers": broker.kafka})
    for columns, message in (
        ({"value": ["v"], "topic": [None]}, "column 'topic' is null"),
        ({"value": ["v"], "topic": ["sink-refused"], "partition": [2]}, "has no partition 2: it has 2"),
        (
            {"value": [random.Random(1).randbytes(2_000_000).hex()], "topic": ["sink-refused"]},
            "lower option 'kafka.batch.size', or raise",
        ),
    ):
        typed = {
            name: pa.array(values, pa.int32() if name == "partition" else pa.string())
            for name, values in columns.items()
        }
        with pytest.raises(WriteRefused, match=message):
            sink.write_rows(options, iter([pa.RecordBatch.from_pydict(typed)]))
    for text, message in (
        ("k", "column 'value' is required"),
        ("value:integer,topic", "must be string or binary, not int"),
        ("value", "must say where rows go"),
        ("value,topic,headers:float", "array<struct<key:string,value:binary>>"),
    ):
        types = StructType()
        for name, _, kind in (name.partition(":") for name in text.split(",")):
            types.add(name, kind or "string")
        with pytest.raises(OptionError, match=message):
            sink.check_schema(types, options)
    nowhere = sink.parse({"kafka.bootstrap.servers": broker.kafka, "topic": "sink-nowhere"})
    with pytest.raises(UnknownTopic, match="writing creates none, `headrace topics create sink-nowhere` does"):
        sink.check_topic(nowhere)
    sink.parse({"kafka.bootstrap.servers": broker.kafka, "topic": "a", "queryName": "of a declared pipeline"})
    with pytest.raises(OptionError, match="did you mean 'topic'"):
        sink.parse({"kafka.bootstrap.servers": broker.kafka, "topics": "a"})


@pytest.mark.spark
def test_a_query_from_topic_to_topic(
    broker: Server, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> None:
    create(broker, "sink-in", 2)
    create(broker, "sink-out", 2)
    producer = Producer({"bootstrap.servers": broker.kafka})
    for n in range(100):
        producer.produce("sink-in", str(n), f"k{n}", n % 2)
    assert producer.flush(60) == 0
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", broker.kafka)
        .option("subscribe", "sink-in")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(
            "key",
            "CAST(2 * CAST(CAST(value AS STRING) AS INT) AS STRING) AS value",
            "partition",
            "array(named_struct('key', 'from', 'value', CAST(topic AS BINARY))) AS headers",
        )
    )
    run_out(
        frame.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", broker.kafka)
        .option("topic", "sink-out")
        .option("checkpointLocation", str(tmp_path_factory.mktemp("checkpoint")))
    )
    assert written(broker, "sink-out", 2) == [
        [(b"k%d" % n, b"%d" % (2 * n)) for n in range(part, 100, 2)] for part in (0, 1)
    ]
    back = (
        spark.read.format("headrace").option("kafka.bootstrap.servers", broker.kafka).option("includeHeaders", "true")
    )
    [row] = back.option("subscribe", "sink-out").load().select("headers").distinct().collect()
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("from", b"sink-in")]
    rows = spark.range(1_000).selectExpr("CAST(id AS STRING) AS value", "'sink-out' AS topic")
    rows.write.format("headrace").option("kafka.bootstrap.servers", broker.kafka).mode("append").save()
    assert sum(map(len, written(broker, "sink-out", 2))) == 1_100
