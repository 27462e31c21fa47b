"""`format("headrace")` against Apache Kafka itself: what works with our broker works with any (`make test LANE=kafka`).

KAFKA_BOOTSTRAP=HOST:PORT takes a broker that runs already, without login; else one is started.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from tests.harness.apache_kafka import PASSWORD, USER, ApacheKafka, apache_kafka
from tests.spark.sink.test_exactly_once import copy_and_repeat, stand_still

from .conftest import DAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.maven, pytest.mark.timeout(1800)]
GIVEN = os.environ.get("KAFKA_BOOTSTRAP")
_latest: Callable[[], OffsetSpec] = OffsetSpec.latest
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    if GIVEN:
        yield ApacheKafka(GIVEN, "", Path())
        return
    with apache_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="module")
def admin(kafka: ApacheKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.plain})


def create(admin: AdminClient, partitions: int = 1) -> str:
    """A topic of a name of its own: a broker that runs already may have others."""
    name = f"spark-{uuid4().hex[:12]}"
    # The records are old: Kafka would drop them half a minute after its start.
    admin.create_topics([NewTopic(name, partitions, config={"retention.ms": "-1"})])[name].result(60)
    return name


def produce(
    kafka: ApacheKafka, topic: str, numbers: range, *, partition: int = 0, settings: dict[str, Any] | None = None
) -> None:
    producer = Producer({"bootstrap.servers": kafka.plain, "linger.ms": 5, **(settings or {})})
    for number in numbers:
        producer.produce(topic, b"%d" % number, b"k%d" % number, partition, timestamp=DAY + number)
    assert producer.flush(60) == 0


def end_of(admin: AdminClient, topic: str, isolation: IsolationLevel) -> int:
    """Where the log of the topic's first partition ends for such readers."""
    place = TopicPartition(topic, 0)
    found = admin.list_offsets({place: _latest()}, isolation_level=isolation)[place].result(60)
    return int(found.offset)


class Query:
    """A stream with one checkpoint, run until it has read what there is; (topic, partition, value) of all its runs."""

    def __init__(self, spark: "SparkSession", checkpoint: Path, **options: object) -> None:
        self._spark = spark
        self._checkpoint = str(checkpoint)
        self._options = {name.replace("__", "."): str(value) for name, value in options.items()}
        self.rows: list[tuple[str, int, int]] = []
        self.batches: list[int] = []

    def run(self) -> "Query":
        def keep(batch: "DataFrame", _batch_id: int) -> None:
            found = batch.selectExpr("topic", "partition", "CAST(CAST(value AS STRING) AS INT)").collect()
            self.rows += [tuple(row) for row in found]
            self.batches.append(len(found))

        frame = self._spark.readStream.format("headrace").options(**self._options).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self._checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        return self


def test_a_stream_of_several_topics_that_grow(
    kafka: ApacheKafka, admin: AdminClient, spark: "SparkSession", tmp_path: Path
) -> None:
    first, second = create(admin, 2), create(admin)
    for place, codec in enumerate(CODECS):
        produce(
            kafka, first, range(place * 50, place * 50 + 50), partition=place % 2, settings={"compression.type": codec}
        )
    produce(kafka, second, range(40))
    query = Query(
        spark,
        tmp_path / "checkpoint",
        kafka__bootstrap__servers=kafka.plain,
        subscribe=f"{first},{second}",
        startingOffsets="earliest",
        maxOffsetsPerTrigger=100,
    )
    query.run()
    expected = sorted([(first, n // 50 % 2, n) for n in range(250)] + [(second, 0, n) for n in range(40)])
    assert sorted(query.rows) == expected
    assert max(query.batches) <= 100
    admin.create_partitions([NewPartitions(second, 2)])[second].result(60)
    produce(kafka, second, range(100, 130), partition=1)
    assert sorted(query.run().rows) == sorted(expected + [(second, 1, n) for n in range(100, 130)])


def test_a_topic_that_is_created_again(
    kafka: ApacheKafka, admin: AdminClient, spark: "SparkSession", tmp_path: Path
) -> None:
    name = create(admin)
    produce(kafka, name, range(10))
    options = {"kafka__bootstrap__servers": kafka.plain, "subscribe": name, "startingOffsets": "earliest"}
    query = Query(spark, tmp_path / "checkpoint", **options).run()
    assert len(query.rows) == 10
    admin.delete_topics([name])[name].result(60)
    # Kafka deletes in the background.
    while name in admin.list_topics(timeout=60).topics:
        pass
    admin.create_topics([NewTopic(name, 1, config={"retention.ms": "-1"})])[name].result(60)
    produce(kafka, name, range(15))
    with pytest.raises(Exception, match=f"TopicReplaced.*topic '{name}' was deleted and created again"):
        query.run()
    tolerant = Query(spark, tmp_path / "checkpoint", failOnDataLoss=False, **options).run()
    assert sorted(tolerant.rows) == [(name, 0, number) for number in range(15)]


def test_a_batch_by_offsets_and_by_times(kafka: ApacheKafka, admin: AdminClient, spark: "SparkSession") -> None:
    name = create(admin)
    produce(kafka, name, range(500), settings={"compression.type": "lz4", "batch.size": 2_000})
    reader = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.plain).option("subscribe", name)

    def offsets(**options: str) -> list[int]:
        return sorted(row.offset for row in reader.options(**options).load().select("offset").collect())

    assert offsets(minPartitions="5") == [*range(500)]
    assert offsets(startingTimestamp=str(DAY + 123), endingTimestamp=str(DAY + 321)) == [*range(123, 321)]
    admin.delete_records([TopicPartition(name, 0, 30)])[TopicPartition(name, 0, 30)].result(60)
    fresh = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.plain).option("subscribe", name)
    with pytest.raises(Exception, match=f"offsets 10 to 29 of {name}-0 are gone"):
        fresh.option("startingOffsets", f'{{"{name}":{{"0":10}}}}').load().count()


def test_aborted_transactions_and_control_batches_are_left_out(
    kafka: ApacheKafka, admin: AdminClient, spark: "SparkSession", tmp_path: Path
) -> None:
    name = create(admin)
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": name})
    producer.init_transactions(120)
    for number, commit in enumerate((True, False, True, False, True)):
        producer.begin_transaction()
        for record in range(10):
            producer.produce(name, b"%d" % (number * 10 + record))
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(120)
    # Kafka responds when it has decided, before the log shows it.
    while end_of(admin, name, IsolationLevel.READ_COMMITTED) < end_of(admin, name, IsolationLevel.READ_UNCOMMITTED):
        pass
    options = {"kafka__bootstrap__servers": kafka.plain, "subscribe": name, "startingOffsets": "earliest"}
    committed = Query(spark, tmp_path / "one", **options, kafka__isolation__level="read_committed").run()
    assert sorted(row[2] for row in committed.rows) == [n for n in range(50) if n // 10 % 2 == 0]
    everything = Query(spark, tmp_path / "two", **options).run()
    assert sorted(row[2] for row in everything.rows) == [*range(50)]


def test_a_topic_is_written_exactly_once(kafka: ApacheKafka, spark: "SparkSession", tmp_path: Path) -> None:
    copy_and_repeat(kafka.plain, spark, tmp_path)


@pytest.mark.parametrize("decided", [False, True])
def test_a_query_that_stands_still_for_longer_than_the_timeout(kafka: ApacheKafka, decided: bool) -> None:
    stand_still(kafka.plain, decided=decided)


@pytest.mark.skipif(bool(GIVEN), reason="logins and certificates are those of the broker that is started here")
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_logins_over_tls(
    mechanism: str, kafka: ApacheKafka, admin: AdminClient, spark: "SparkSession", tmp_path: Path
) -> None:
    name = create(admin)
    produce(kafka, name, range(20))
    module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"

    def jaas(password: str) -> str:
        return f'org.apache.kafka.common.security.{module} required username="{USER}" password="{password}";'

    options = {
        "kafka__bootstrap__servers": kafka.secure,
        "kafka__security__protocol": "SASL_SSL",
        "kafka__sasl__mechanism": mechanism,
        "kafka__sasl__jaas__config": jaas(PASSWORD),
        "kafka__ssl__truststore__type": "PEM",
        "kafka__ssl__truststore__location": kafka.certificate,
        "subscribe": name,
        "startingOffsets": "earliest",
    }
    query = Query(spark, tmp_path / "checkpoint", **options)
    assert [row[2] for row in sorted(query.run().rows)] == [*range(20)]
    produce(kafka, name, range(20, 25))
    assert [row[2] for row in sorted(query.run().rows)] == [*range(25)]
    for changed, message in (
        ({"kafka__sasl__jaas__config": jaas("wrong")}, "LoginRefused"),
        ({"kafka__ssl__truststore__type": "JKS"}, "JKS"),
        ({"kafka__ssl__truststore__location": tmp_path / "nothing.pem"}, r"nothing\.pem"),
    ):
        with pytest.raises(Exception, match=message):
            Query(spark, tmp_path / "refused", **(options | changed)).run()
