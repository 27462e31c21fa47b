"""Spark's own `format("kafka")` reads and writes topics: `make test LANE=format-kafka`; Maven fetches it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation
from tests.harness.apache_kafka import connector_jars
from tests.harness.pages import ADDRESS, BLOCK, guides
from tests.harness.secured import PASSWORD, SecuredServer, secured_server
from tests.harness.wire import Wire

from headrace.testing import Server, server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.maven, pytest.mark.timeout(600)]
_WAIT_S = 240
VALUE = "CAST(CAST(value AS STRING) AS INT) AS n"


@pytest.fixture(scope="module")
def spark() -> Iterator["SparkSession"]:
    from headrace.spark import session  # noqa: PLC0415  # what other lanes collect needs no Spark

    # In real-time mode, each partition has a core for the whole batch.
    jars = {"spark.jars": connector_jars()}
    started = session.create("format kafka", master="local[4]", optimize=False, log_level="off", conf=jars)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(num_partitions=1) as started:
        yield started


def create(at: Server, partitions: int = 1, **config: object) -> str:
    """A topic of a name of its own."""
    with Wire(at.kafka) as wire:
        return wire.create(f"spark-{uuid4().hex[:12]}", partitions, **config)


def produce(at: Server, topic: str, numbers: range, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": at.kafka, "linger.ms": 5})
    for n in numbers:
        producer.produce(topic, b"%d" % n, b"k%d" % n, n % partitions, headers=[("sign", b"+"), ("none", None)])
    assert producer.flush(60) == 0


def produce_in_transactions(at: Server, topic: str, numbers: range, every: int) -> list[int]:
    """Every second transaction is aborted; the records of the others."""
    producer = Producer({"bootstrap.servers": at.kafka, "transactional.id": topic})
    producer.init_transactions(60)
    kept: list[int] = []
    for place, first in enumerate(range(numbers.start, numbers.stop, every)):
        producer.begin_transaction()
        part = range(first, min(first + every, numbers.stop))
        for n in part:
            producer.produce(topic, b"%d" % n)
        producer.flush(60)
        if place % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            kept += part
    return kept


def options(at: Server, **more: object) -> dict[str, str]:
    named = {name.replace("__", "."): str(given) for name, given in more.items()}
    return {"kafka.bootstrap.servers": at.kafka, **named}


def numbers_of(spark: "SparkSession", **given: str) -> list[int]:
    """The values of a topic, sorted, read in a batch."""
    return sorted(row.n for row in spark.read.format("kafka").options(**given).load().selectExpr(VALUE).collect())


def copied(frame: "DataFrame", checkpoint: Path, **sink: str) -> None:
    """Copy what there is to a topic, and go on from the checkpoint."""
    writer = frame.select("key", "value", "headers").writeStream.format("kafka").options(**sink)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(_WAIT_S)


def in_real_time(frame: "DataFrame", checkpoint: Path, **sink: str) -> "StreamingQuery":
    """Copy to a topic in batches that are longer than the test: what comes out did not wait for the end of one."""
    # PySpark's stubs do not know the trigger yet.
    writer: Any = frame.select("key", "value").writeStream.format("kafka").options(**sink).outputMode("update")
    query: StreamingQuery = writer.option("checkpointLocation", str(checkpoint)).trigger(realTime="30 minutes").start()
    return query


def wait_for(at: Server, topic: str, query: "StreamingQuery", wanted: set[int], partitions: int = 1) -> list[int]:
    """Read a topic from its beginning until it has had all these numbers; every number that it had."""
    consumer = Consumer({"bootstrap.servers": at.kafka, "group.id": uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, place, 0) for place in range(partitions)])
    found: list[int] = []
    deadline = time.monotonic() + _WAIT_S
    while not wanted <= set(found):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{len(found)} of {len(wanted)}"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(int(message.value() or b""))
    consumer.close()
    return found


def test_a_batch_reads_every_column(spark: "SparkSession", running: Server) -> None:
    topic = create(running, 2)
    produce(running, topic, range(100), 2)
    given = options(running, subscribe=topic, includeHeaders=True)
    rows = spark.read.format("kafka").options(**given).load().collect()
    assert sorted((row.partition, row.offset, int(row.value), bytes(row.key).decode()) for row in rows) == sorted(
        (n % 2, n // 2, n, f"k{n}") for n in range(100)
    )
    assert {(row.topic, row.timestampType) for row in rows} == {(topic, 0)}
    assert {tuple((name, value and bytes(value)) for name, value in row.headers) for row in rows} == {
        (("sign", b"+"), ("none", None))
    }


def test_a_batch_reads_some_offsets_in_several_tasks(spark: "SparkSession", running: Server) -> None:
    topic = create(running)
    produce(running, topic, range(100))
    assert numbers_of(
        spark,
        **options(
            running,
            subscribePattern=f"{topic}.*",
            startingOffsets=f'{{"{topic}":{{"0":10}}}}',
            endingOffsets=f'{{"{topic}":{{"0":90}}}}',
            minPartitions=4,
        ),
    ) == [*range(10, 90)]


def test_a_stream_goes_on_from_its_checkpoint_after_the_server_was_killed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with server() as own:
        source, sink = create(own, 2), create(own, 3)
        given = options(
            own, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=150, includeHeaders=True
        )
        frame = spark.readStream.format("kafka").options(**given).load()
        produce(own, source, range(500), 2)
        copied(frame, tmp_path / "checkpoint", **options(own, topic=sink))
        own.kill()
        own.start()
        produce(own, source, range(500, 700), 2)
        copied(frame, tmp_path / "checkpoint", **options(own, topic=sink))
        assert numbers_of(spark, **options(own, subscribe=sink)) == [*range(700)]
        written = spark.read.format("kafka").options(**options(own, subscribe=sink, includeHeaders=True)).load()
        assert {bytes(row.headers[0].value) for row in written.collect()} == {b"+"}


def test_aborted_records_are_left_out(spark: "SparkSession", running: Server, tmp_path: Path) -> None:
    source, sink = create(running), create(running)
    kept = produce_in_transactions(running, source, range(50), 10)
    given = options(running, subscribe=source, kafka__isolation__level="read_committed")
    assert numbers_of(spark, **given) == kept
    assert numbers_of(spark, **options(running, subscribe=source)) == [*range(50)]
    producer = Producer({"bootstrap.servers": running.kafka, "transactional.id": f"{source}-open"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(source, b"1000")
    producer.flush(60)
    assert numbers_of(spark, **given) == kept, "a batch ends where a transaction is open"
    producer.abort_transaction(60)
    stream = spark.readStream.format("kafka").options(**given, includeHeaders="true", startingOffsets="earliest").load()
    copied(stream, tmp_path / "checkpoint", **options(running, topic=sink))
    # Its last transaction is aborted: the log ends with records that no one may see.
    kept += produce_in_transactions(running, source, range(50, 70), 10)
    copied(stream, tmp_path / "checkpoint", **options(running, topic=sink))
    assert numbers_of(spark, **options(running, subscribe=sink)) == kept


def test_real_time_mode_copies_before_its_batch_ends(spark: "SparkSession", running: Server, tmp_path: Path) -> None:
    source, sink = create(running, 2), create(running, 2)
    given = options(running, subscribe=source, startingOffsets="earliest")
    stream = spark.readStream.format("kafka").options(**given).load()
    produce(running, source, range(100), 2)
    query = in_real_time(stream, tmp_path / "checkpoint", **options(running, topic=sink))
    try:
        assert sorted(wait_for(running, sink, query, {*range(100)}, 2)) == [*range(100)]
        produce(running, source, range(100, 200), 2)
        assert sorted(wait_for(running, sink, query, {*range(200)}, 2)) == [*range(200)]
        assert query.lastProgress is None, "no batch has ended"
    finally:
        query.stop()
    # The batch was not finished: it is read again from its beginning.
    produce(running, source, range(200, 210), 2)
    again = in_real_time(stream, tmp_path / "checkpoint", **options(running, topic=sink))
    try:
        assert set(wait_for(running, sink, again, {*range(210)}, 2)) == {*range(210)}
    finally:
        again.stop()


def test_real_time_mode_leaves_out_aborted_records(spark: "SparkSession", running: Server, tmp_path: Path) -> None:
    source, sink = create(running), create(running)
    given = options(running, subscribe=source, startingOffsets="earliest", kafka__isolation__level="read_committed")
    stream = spark.readStream.format("kafka").options(**given).load()
    query = in_real_time(stream, tmp_path / "checkpoint", **options(running, topic=sink))
    try:
        kept = produce_in_transactions(running, source, range(50), 10)
        assert wait_for(running, sink, query, set(kept)) == kept
    finally:
        query.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with secured_server(tmp_path_factory.mktemp("secured")) as made:
        made.add_user("etl")
        made.fill("flights", 2, [b"%d" % number for number in range(100)])
        made.fill("copies", 1, [])
        made.allow("etl", AclOperation.READ, topic="flights")
        made.allow("etl", AclOperation.WRITE, topic="copies")
        yield made


def login(secured: SecuredServer, password: str) -> dict[str, str]:
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    return options(
        secured.server,
        kafka__security__protocol="SASL_SSL",
        kafka__sasl__mechanism="SCRAM-SHA-512",
        kafka__sasl__jaas__config=f'{jaas} username="etl" password="{password}";',
        kafka__ssl__truststore__type="PEM",
        kafka__ssl__truststore__location=secured.made.authority,
    )


def test_a_login_over_tls_needs_only_the_rights_on_topics(
    spark: "SparkSession", secured: SecuredServer, tmp_path: Path
) -> None:
    given = login(secured, PASSWORD.replace("\\", r"\\").replace('"', r"\""))
    assert numbers_of(spark, **given, subscribe="flights") == [*range(100)]
    stream = spark.readStream.format("kafka").options(
        **given, subscribe="flights", startingOffsets="earliest", includeHeaders="true"
    )
    copied(stream.load(), tmp_path / "checkpoint", **given, topic="copies")
    with pytest.raises(Exception, match="Not authorized to access topics"):
        numbers_of(spark, **given, subscribe="copies")
    with pytest.raises(Exception, match="SaslAuthenticationException"):
        numbers_of(spark, **login(secured, "wrong"), subscribe="flights")


def test_the_guide(spark: "SparkSession", running: Server, tmp_path: Path) -> None:
    with Wire(running.kafka) as wire:
        for topic in ("orders", "copies", "loud"):
            wire.create(topic)
    produce(running, "orders", range(20))
    names: dict[str, object] = {}
    program = [block["text"] for block in BLOCK.finditer(guides("spark-kafka")) if block["kind"] == "python"]
    for text in program:
        # Its session is that of this test, which has the JAR.
        exec(text.replace(ADDRESS, running.kafka).replace("checkpoints/", f"{tmp_path}/"), names)
    assert numbers_of(spark, **options(running, subscribe="copies")) == [*range(20)]
    query: StreamingQuery = names["query"]  # type: ignore[assignment]
    try:
        # It begins with what comes after its start, which may be a while from now.
        while not numbers_of(spark, **options(running, subscribe="loud")):
            assert query.isActive, query.exception()
            produce(running, "orders", range(20, 21))
    finally:
        query.stop()
    assert set(numbers_of(spark, **options(running, subscribe="loud"))) == {20}
