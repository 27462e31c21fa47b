"""Positions of Spark queries and of the archive, in a consumer group of a real server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.spark.conftest import run_out

from headrace.client import offsets as client_offsets
from headrace.client.errors import GroupCommitFailed
from headrace.spark.source.groups import ConsumerGroupListener, GroupCommitter, commit_groups
from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
_PATIENCE_MS = 120_000


def make_topic(broker: Server, name: str, counts: dict[int, int]) -> None:
    """A topic whose partition p has counts[p] records."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, len(counts))])[name].result(60)
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 1})
    for partition, count in counts.items():
        for number in range(count):
            producer.produce(name, value=str(number), partition=partition)
    assert producer.flush(60) == 0


def offsets(topic: str, by_number: dict[int, int]) -> client_offsets.Offsets:
    return {client_offsets.TopicPartition(topic, number): offset for number, offset in by_number.items()}


def positions(broker: Server, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(60)
    return {found.partition: found.offset for found in answer.topic_partitions}


def read_all(frame: "DataFrame", checkpoint: Path, name: str) -> int:
    """Run a stream to the end; the rows it brought."""
    counts = []

    def count(batch: "DataFrame", _batch_id: int) -> None:
        counts.append(batch.count())

    writer = frame.writeStream.queryName(name).foreachBatch(count).option("checkpointLocation", str(checkpoint))
    run_out(writer)
    return sum(counts)


def test_positions_are_committed_without_joining(broker: Server) -> None:
    make_topic(broker, "committed", {0: 3, 1: 4})
    committer = GroupCommitter(broker.kafka, "committed-group")
    committer.commit(offsets("committed", {0: 2, 1: 4}))
    committer.commit(offsets("committed", {0: 3}))
    assert positions(broker, "committed-group") == {0: 3, 1: 4}
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "committed-group"})
    assert [found.offset for found in consumer.committed([TopicPartition("committed", 0)], 60)] == [3]
    consumer.close()


def test_a_refused_position_is_an_error(broker: Server) -> None:
    with pytest.raises(GroupCommitFailed, match=r"group 'g' was not committed at 127.0.0.1:\d+: "):
        GroupCommitter(broker.kafka, "g").commit(offsets("no-such-topic", {7: 1}))


def test_two_queries_with_one_group_are_reported(broker: Server) -> None:
    make_topic(broker, "shared", {0: 9})
    one, other = GroupCommitter(broker.kafka, "shared-group"), GroupCommitter(broker.kafka, "shared-group")
    one.commit(offsets("shared", {0: 1}))
    # A query that starts cannot know whether the positions are those of its own last run.
    other.commit(offsets("shared", {0: 5}))
    assert (one.intruder, other.intruder) == (None, None)
    for committer, offset, told in (
        (one, 2, "shared-0: committed 1, found 5"),
        (other, 6, "shared-0: committed 5, found 2"),
    ):
        committer.commit(offsets("shared", {0: offset}))
        assert committer.intruder is not None
        assert committer.intruder.startswith(f"group 'shared-group' is committed by another program as well ({told})")
    other.commit(offsets("shared", {0: 7}))
    assert other.intruder is None


def test_a_query_with_a_group_shows_its_committed_offsets(broker: Server, spark: "SparkSession", scratch: Path) -> None:
    make_topic(broker, "query", {0: 50, 1: 20})
    frame = (
        spark.readStream.format("headrace")
        .option("redis", broker.storage)
        .option("subscribe", "query")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30)
        .option("consumerGroup", "query-group")
        .option("kafka.bootstrap.servers", broker.kafka)
        .load()
    )
    assert read_all(frame, scratch, "query") == 70
    assert positions(broker, "query-group") == {0: 50, 1: 20}


def test_a_listener_commits_the_end_of_every_batch(broker: Server, spark: "SparkSession", scratch: Path) -> None:
    make_topic(broker, "listened", {0: 10})
    listener = commit_groups(spark, broker.kafka, "listened-group", query="listened")
    other = ConsumerGroupListener(broker.kafka, "other-group", query="another")
    spark.streams.addListener(other)
    try:
        reader = spark.readStream.format("headrace").option("redis", broker.storage)
        frame = reader.option("subscribe", "listened").option("startingOffsets", "earliest").load()
        assert read_all(frame, scratch, "listened") == 10
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(_PATIENCE_MS)
        assert listener.error is None
        assert positions(broker, "listened-group") == {0: 10}
        assert positions(broker, "other-group") == {}
    finally:
        spark.streams.removeListener(listener)
        spark.streams.removeListener(other)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--topic", "nowhere"], 4, "no topic 'nowhere' in the storage at "),
        (["--topic", "t", "--kafka", "127.0.0.1:9092"], 2, "--bootstrap is about where --group is committed"),
        (["--topic", "t", "--redis", "http://x"], 1, "http://x is not a storage URL"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    broker: Server, scratch: Path, arguments: list[str], status: int, message: str
) -> None:
    command = [sys.executable, "-m", "headrace", "archive", "--table", str(scratch / "t"), *arguments]
    environment = os.environ | {"HEADRACE_REDIS": broker.storage}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (scratch / "t").exists()
