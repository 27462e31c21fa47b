"""Topics that are deleted and created again under a query, through Redis and through the Kafka protocol."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from tests.harness.storage import BareStorage
from tests.spark.conftest import records, run_out

from headrace.client.errors import DataLoss, OptionError, TopicReplaced
from headrace.client.offsets import ID, TopicPartition
from headrace.spark.archive import ranges
from headrace.spark.source import options as source_options
from headrace.spark.source.groups import _offsets
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.source import BatchReader
from headrace.spark.source.stream import StreamReader
from headrace.spark.source.topic_log import Subscription
from headrace.testing import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Pairs = list[tuple[int, int]]


class Topic:
    """A topic of a real server, and ways to read it."""

    def __init__(self, broker: Server, name: str) -> None:
        self.broker = broker
        self.name = name
        self._counts: list[int] = []
        self._admin = AdminClient({"bootstrap.servers": broker.kafka})

    def create(self, *counts: int, **config: str) -> "Topic":
        """Make it with so many records in each partition."""
        made = NewTopic(self.name, len(counts), config={key.replace("_", "."): text for key, text in config.items()})
        self._admin.create_topics([made])[self.name].result(60)
        self._counts = [0] * len(counts)
        return self.append(*counts)

    def append(self, *counts: int) -> "Topic":
        producer = Producer({"bootstrap.servers": self.broker.kafka})
        for partition, count in enumerate(counts):
            for number in range(count):
                producer.produce(self.name, b"%d" % number, partition=partition)
            self._counts[partition] += count
        assert producer.flush(60) == 0
        with LogReader(self.broker.storage) as log:
            # What is acknowledged may come to Redis a moment later.
            while any(
                log.extents(log.topics(Subscription(names=(self.name,))))[one].end < end for one, end in self.ends()
            ):
                pass
        return self

    def ends(self) -> list[tuple[TopicPartition, int]]:
        """Where the partitions end, or an offset that their ends are not below."""
        return [(TopicPartition(self.name, number), count) for number, count in enumerate(self._counts)]

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(60)

    def replace(self, *counts: int, **config: str) -> None:
        """Delete it and make it again."""
        self.delete()
        self.create(*counts, **config)

    def options(self, route: str, **more: str) -> dict[str, str]:
        where = {"redis": self.broker.storage} if route == "redis" else {"kafka.bootstrap.servers": self.broker.kafka}
        wanted = {} if "subscribePattern" in more else {"subscribe": self.name}
        return {**where, **wanted, **more}

    def reader(self, route: str, **more: str) -> StreamReader:
        """A stream's reader without Spark, from the beginning."""
        given = self.options(route, **{"startingOffsets": "earliest", **more})
        return StreamReader(source_options.parse(given, default_redis=None))

    def batch(self, route: str, **more: str) -> Pairs:
        """What a batch read reads."""
        given = source_options.parse(self.options(route, **more), default_redis=None)
        return read(BatchReader(given))

    def stream(self, spark: "SparkSession", checkpoint: Path, route: str, **more: str) -> list[Pairs]:
        """Run a query until it has read everything there is; what each batch has read."""
        batches: list[Pairs] = []

        def collect(frame: "DataFrame", _batch_id: int) -> None:
            batches.append(sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect()))

        frame = spark.readStream.format("headrace").options(**self.options(route, startingOffsets="earliest", **more))
        run_out(frame.load().writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint)))
        return batches


@pytest.fixture
def topic(broker: Server, request: pytest.FixtureRequest) -> Topic:
    return Topic(broker, request.node.name.replace("[", "-").rstrip("]")[:200])


@pytest.fixture(params=["kafka", "redis"])
def route(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pairs(*counts: int) -> Pairs:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


def read(reader: StreamReader | BatchReader, *bounds: dict[str, Any]) -> Pairs:
    """The records of a batch, as Spark's driver and tasks would read them."""
    found: Pairs = []
    for partition in reader.partitions(*bounds):
        for rows in reader.read(partition):
            found += zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True)
    return sorted(found)


def until_it_looks(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the next batch, which a reader notices with its next look at the cluster."""
    while (end := reader.latestOffset(start)) == start:
        pass
    return end


def without_ids(stored: dict[str, Any]) -> dict[str, Any]:
    """An offset as earlier versions stored it."""
    return {name: {key: value for key, value in each.items() if key != ID} for name, each in stored.items()}


def strip(checkpoint: Path) -> int:
    """Make a checkpoint one of an earlier version; how many offsets had ids."""
    changed = 0
    for path in [*(checkpoint / "offsets").glob("[0-9]*"), *(checkpoint / "sources" / "0").glob("[0-9]*")]:
        lines = path.read_text("utf-8").split("\n")
        old = [json.dumps(without_ids(json.loads(line))) if f'"{ID}"' in line else line for line in lines]
        changed += old != lines
        path.write_text("\n".join(old), "utf-8")
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return changed


@pytest.mark.spark
@pytest.mark.parametrize("after", [(15,), (15, 2)], ids=["same", "more"])
def test_a_query_does_not_go_on_in_a_new_topic(
    topic: Topic, route: str, after: tuple[int, ...], spark: "SparkSession", tmp_path: Path
) -> None:
    topic.create(10)
    assert topic.stream(spark, tmp_path / "c", route) == [pairs(10)]
    topic.replace(*after)
    with pytest.raises(Exception, match=f"TopicReplaced.*topic '{topic.name}' was deleted and created again"):
        topic.stream(spark, tmp_path / "c", route)
    assert topic.stream(spark, tmp_path / "c", route, failOnDataLoss="false") == [pairs(*after)]
    topic.append(3)
    assert topic.stream(spark, tmp_path / "c", route) == [[(0, 15), (0, 16), (0, 17)]]


@pytest.mark.spark
def test_a_checkpoint_of_an_earlier_version_goes_on_by_either_route(
    topic: Topic, spark: "SparkSession", tmp_path: Path
) -> None:
    topic.create(10)
    assert topic.stream(spark, tmp_path / "c", "kafka") == [pairs(10)]
    assert strip(tmp_path / "c")
    topic.append(2)
    assert topic.stream(spark, tmp_path / "c", "redis") == [[(0, 10), (0, 11)]]
    assert strip(tmp_path / "c")
    # Nothing new to read: a batch without rows notes the id.
    assert topic.stream(spark, tmp_path / "c", "kafka") == [[]]
    assert topic.stream(spark, tmp_path / "c", "redis") == []
    topic.append(1)
    assert topic.stream(spark, tmp_path / "c", "redis") == [[(0, 12)]]
    topic.replace(20)
    for route in ("kafka", "redis"):
        with pytest.raises(Exception, match="TopicReplaced"):
            topic.stream(spark, tmp_path / "c", route)


def test_both_routes_know_a_topic_by_one_id(topic: Topic) -> None:
    topic.create(1)
    stored = [topic.reader(route).latestOffset({}) for route in ("kafka", "redis")]
    assert stored[0] == stored[1]
    assert len(str(stored[0][topic.name][ID])) == 36


@pytest.mark.parametrize("after", [(3,), (15,), (15, 1), (1, 1, 1)])
def test_between_two_batches_of_a_running_query(topic: Topic, route: str, after: tuple[int, ...]) -> None:
    topic.create(10, 4)
    strict, tolerant = topic.reader(route), topic.reader(route, failOnDataLoss="false")
    end = strict.latestOffset(strict.initialOffset())
    assert read(strict, strict.initialOffset(), end) == pairs(10, 4)
    topic.replace(*after)
    with pytest.raises(TopicReplaced, match=f"topic '{topic.name}' was deleted and created again"):
        until_it_looks(strict, end)
    following = tolerant.latestOffset(end)
    assert read(tolerant, end, following) == pairs(*after)
    assert tolerant.latestOffset(following) == following


def test_what_waits_in_a_new_topic_counts(topic: Topic, route: str) -> None:
    topic.create(10)
    reader = topic.reader(route, failOnDataLoss="false", minOffsetsPerTrigger="12")
    end = topic.reader(route).latestOffset(topic.reader(route).initialOffset())
    assert reader.latestOffset(end) == end
    topic.replace(15)
    assert read(reader, end, until_it_looks(reader, end)) == pairs(15)


def test_a_batch_that_was_planned_before(topic: Topic, route: str, caplog: pytest.LogCaptureFixture) -> None:
    topic.create(10)
    reader = topic.reader(route)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    tasks = reader.partitions(start, end)
    topic.replace(15)
    # As after a restart of the query, whose last batch comes again.
    with pytest.raises(TopicReplaced):
        topic.reader(route).partitions(start, end)
    with pytest.raises((TopicReplaced, DataLoss)):
        [list(topic.reader(route).read(task)) for task in tasks]
    tolerant = topic.reader(route, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert read(tolerant, start, end) == []
    assert "was deleted and created again" in caplog.text
    following = tolerant.latestOffset(end)
    assert read(tolerant, end, following) == pairs(15)


def test_a_task_that_starts_after_the_topic_was_replaced(topic: Topic, route: str) -> None:
    topic.create(10)
    reader, tolerant = topic.reader(route), topic.reader(route, failOnDataLoss="false")
    bounds = reader.initialOffset(), reader.latestOffset(reader.initialOffset())
    strict_tasks, tasks = reader.partitions(*bounds), tolerant.partitions(*bounds)
    topic.replace(15)
    for task in strict_tasks:
        with pytest.raises(TopicReplaced):
            list(reader.read(task))
    assert [list(tolerant.read(task)) for task in tasks] == [[]]


def test_a_task_during_which_the_topic_is_replaced(topic: Topic) -> None:
    topic.create(10)
    reader = topic.reader("kafka", failOnDataLoss="false")
    start = reader.initialOffset()
    [task] = reader.partitions(start, reader.latestOffset(start))
    rows = reader.read(task)
    assert next(rows).num_rows == 10
    topic.replace(15)
    with pytest.raises(TopicReplaced):
        next(rows)


def test_a_run_that_ends_does_not_wait_for_a_new_topic(topic: Topic, route: str) -> None:
    """The topic is replaced while a run with availableNow is under way: the next run reads the new one."""
    topic.create(10)
    first = topic.reader(route, failOnDataLoss="false")
    first.prepareForTriggerAvailableNow()
    end = first.latestOffset(first.initialOffset())
    topic.replace(15)
    after = until_it_looks(first, end)
    assert first.latestOffset(after) == after
    assert read(first, end, after) == []
    following = topic.reader(route)
    assert read(following, after, following.latestOffset(after)) == pairs(15)


def test_topics_of_a_pattern_come_and_go(topic: Topic, broker: Server, route: str) -> None:
    name = topic.name
    one, two = Topic(broker, f"{name}.1").create(4), Topic(broker, f"{name}.2").create(6)
    pattern = {"subscribePattern": f"{name.replace('[', '.')}[.][0-9]"}
    strict, tolerant = topic.reader(route, **pattern), topic.reader(route, failOnDataLoss="false", **pattern)
    end = strict.latestOffset(strict.initialOffset())
    two.delete()
    Topic(broker, f"{name}.3").create(2)
    with pytest.raises(DataLoss, match=f"{name}.2-0 is gone"):
        topic.reader(route, **pattern).latestOffset(end)
    following = tolerant.latestOffset(end)
    assert set(following) == {one.name, f"{name}.3"}
    two.create(8)
    with pytest.raises(TopicReplaced, match=two.name):
        topic.reader(route, **pattern).latestOffset(end)
    last = topic.reader(route, **pattern).latestOffset(following)
    assert set(last) == {one.name, two.name, f"{name}.3"}
    assert last[two.name]["0"] == 8
    assert last[two.name][ID] != end[two.name][ID]


def test_a_topic_that_lost_its_end_or_its_start_is_data_loss(storage: BareStorage, topic: Topic) -> None:
    """Restored with fewer records: the id is the same, and the length shows it."""
    made = storage.create_topic(topic.name)
    storage.append(made, 0, records(10))
    given = {"redis": storage.url, "subscribe": topic.name, "startingOffsets": "earliest"}
    reader = StreamReader(source_options.parse(given, default_redis=None))
    ahead = {topic.name: {"0": 12, ID: str(made.id)}}
    with pytest.raises(DataLoss, match=r"offset 12 of .* is beyond the log end 10"):
        reader.latestOffset(ahead)


def test_a_native_topic_has_the_same_keys_again(topic: Topic) -> None:
    topic.create(10, headrace_storage="native")
    reader = topic.reader("redis")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    tasks = reader.partitions(start, end)
    topic.replace(15, headrace_storage="native")
    for task in tasks:
        with pytest.raises(TopicReplaced):
            list(reader.read(task))
    for route in ("kafka", "redis"):
        with pytest.raises(TopicReplaced):
            topic.reader(route).latestOffset(end)
        tolerant = topic.reader(route, failOnDataLoss="false")
        assert len(read(tolerant, end, tolerant.latestOffset(end))) == 15


@pytest.mark.parametrize("storage", ["native", "log"])
def test_a_conversion_changes_offsets_and_no_id(topic: Topic, route: str, storage: str) -> None:
    """What was read before is not read again, nor is anything skipped without an error."""
    topic.create(10, headrace_storage="log" if storage == "native" else "native")
    reader = topic.reader(route)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    admin = AdminClient({"bootstrap.servers": topic.broker.kafka})
    wanted = NewTopic(topic.name, 1, config={"headrace.convert": storage})
    admin.create_topics([wanted])[topic.name].result(60)
    with pytest.raises(DataLoss):
        topic.reader(route).latestOffset(end)
    found = topic.reader(route)
    assert found.latestOffset({})[topic.name][ID] == end[topic.name][ID]
    assert len(read(found, found.initialOffset(), found.latestOffset({}))) == 10


def test_brokers_without_ids(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka before 2.8: nothing is checked, an id that is known is kept, one that appears is taken over."""
    from uuid import UUID  # noqa: PLC0415

    from headrace.client import cluster  # noqa: PLC0415

    topic.create(10)
    reader = topic.reader("kafka")
    end = reader.latestOffset(reader.initialOffset())
    info = cluster.TopicInfo
    with monkeypatch.context() as patched:
        patched.setattr(cluster, "TopicInfo", lambda name, _, *rest: info(name, UUID(int=0), *rest))
        topic.append(2)
        old = topic.reader("kafka")
        following = old.latestOffset(end)
        assert following[topic.name] == {"0": 12, ID: end[topic.name][ID]}
        assert read(old, end, following) == [(0, 10), (0, 11)]
        assert old.latestOffset(without_ids(following)) == without_ids(following)
        assert read(old, old.initialOffset(), following) == pairs(12)
    assert topic.reader("kafka").latestOffset(without_ids(following)) == following


def test_an_archives_query_knows_whose_fences_it_was_given(storage: BareStorage, topic: Topic) -> None:
    """The topic is replaced between the look at the tables and the start of the query."""
    made = storage.create_topic(topic.name)
    storage.append(made, 0, records(10))
    fences = json.loads(ranges.fences_json({TopicPartition(topic.name, 0): 10}, {topic.name: str(made.id)}))
    again = storage.replace_topic(made)
    storage.append(again, 0, records(15))
    given = source_options.parse({"redis": storage.url, "subscribe": topic.name}, default_redis=None)
    reader = ranges.RangeReader(given, fences)
    with pytest.raises(TopicReplaced):
        reader.latestOffset(reader.initialOffset())


@pytest.mark.spark
@pytest.mark.parametrize("skip_lost", [False, True])
def test_an_archive_with_a_checkpoint_takes_up_the_new_topic(
    storage: BareStorage, topic: Topic, skip_lost: bool, spark: "SparkSession", tmp_path: Path
) -> None:
    from headrace.spark.archive import ArchiveSettings, run  # noqa: PLC0415

    settings = ArchiveSettings(
        topics=(topic.name,),
        table=str(tmp_path / "t"),
        redis=storage.url,
        checkpoint=str(tmp_path / "c"),
        skip_lost=skip_lost,
    )
    made = storage.create_topic(topic.name)
    storage.append(made, 0, records(10))
    assert run(settings, once=True, spark=spark).rows == 10
    again = storage.replace_topic(made)
    storage.append(again, 0, records(15))
    assert run(settings, once=True, spark=spark).rows == 15
    found = DeltaTable(tmp_path / "t").to_pyarrow_table(columns=["topicId", "offset"]).to_pylist()
    old, new = ([row["offset"] for row in found if row["topicId"] == str(one.id)] for one in (made, again))
    assert (sorted(old), sorted(new)) == (list(range(10)), list(range(15)))


def test_offsets_of_a_batch_read_may_name_the_topic(topic: Topic, route: str) -> None:
    topic.create(10)
    reader = topic.reader(route)
    reached = json.dumps(reader.latestOffset(reader.initialOffset()))
    begin = json.dumps(reader.initialOffset())
    topic.append(2)
    assert topic.batch(route, startingOffsets=reached) == [(0, 10), (0, 11)]
    assert topic.batch(route, endingOffsets=reached) == pairs(10)
    topic.replace(15)
    for edge, given in (("starting", reached), ("ending", reached), ("starting", begin)):
        with pytest.raises(TopicReplaced):
            topic.batch(route, **{f"{edge}Offsets": given})
        assert topic.batch(route, failOnDataLoss="false", **{f"{edge}Offsets": given}) == pairs(15)
    with pytest.raises(TopicReplaced):
        topic.reader(route, startingOffsets=reached).initialOffset()
    whole = topic.reader(route, startingOffsets=reached, failOnDataLoss="false").initialOffset()
    assert whole[topic.name]["0"] == 0
    with pytest.raises(OptionError, match="'startingOffsets' has 5 where the id of topic 't' belongs"):
        topic.batch(route, startingOffsets='{"t": {"0": 1, "id": 5}}')


def test_a_group_is_not_moved_to_offsets_of_the_old_topic(topic: Topic, route: str) -> None:
    topic.create(10)
    group = {"consumerGroup": topic.name, "kafka.bootstrap.servers": topic.broker.kafka, "failOnDataLoss": "false"}
    reader = topic.reader(route, **group)
    end = reader.latestOffset(reader.initialOffset())
    reader.latestOffset(end)
    assert committed(topic) == 10
    topic.replace(5)
    following = until_it_looks(reader, end)
    reader.commit(end)  # Spark is a batch late
    assert committed(topic) is None
    reader.latestOffset(following)
    assert committed(topic) == 5
    # As after a restart, before the query has read anything of the new topic.
    topic.replace(20)
    topic.reader(route, **group).latestOffset(following)
    assert committed(topic) is None


def committed(topic: Topic) -> int | None:
    from headrace.client import options as client_options  # noqa: PLC0415
    from headrace.client.cluster import Cluster  # noqa: PLC0415

    server = client_options.parse({"kafka.bootstrap.servers": topic.broker.kafka})
    assert server is not None
    cluster = Cluster(server)
    found = cluster.committed(topic.name).get(TopicPartition(topic.name, 0))
    cluster.close()
    return None if found is None else found.offset


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ('{"t":{"0":3,"id":"5c2d"}}', {TopicPartition("t", 0): 3}),
        ('{"t":{"0":3}}', {TopicPartition("t", 0): 3}),
        ('{"t":{"zero":3}}', {}),
        ('{"logOffset":3}', {}),
        (None, {}),
    ],
)
def test_a_listener_reads_ends_with_and_without_ids(told: str | None, expected: dict[TopicPartition, int]) -> None:
    assert _offsets(told) == expected
