"""The log as Spark's tasks read it, from a storage written by the server's scripts."""

import pytest
from tests.harness.storage import BareStorage
from tests.spark.conftest import DAY, records

from headrace.client.errors import CorruptLog, DataLoss, StorageUnavailable, TopicReplaced, UnknownTopic
from headrace.client.offsets import Extent, Range, TopicPartition
from headrace.records.build import build
from headrace.records.markers import Marker, build_marker
from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription, check_id
from headrace.topics.model import Topic


@pytest.fixture
def topic(storage: BareStorage, request: pytest.FixtureRequest) -> Topic:
    """Two partitions; 0 has batches of 1, 2, ... 40 records, 1 has none."""
    created = storage.create_topic(request.node.name.replace("[", "-").rstrip("]"), partitions=2)
    first = 0
    for size in range(1, 41):
        storage.append(created, 0, records(size, first))
        first += size
    return created


def read(storage: BareStorage, topic: Topic, start: int, end: int, *, fail_on_data_loss: bool = True) -> list[int]:
    with LogReader(storage.url) as log:
        batches = log.records(
            topic.streams[0], Range(TopicPartition(topic.name, 0), start, end), fail_on_data_loss=fail_on_data_loss
        )
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_topic_says_where_its_logs_start_and_end(storage: BareStorage, topic: Topic) -> None:
    storage.trim(topic, 0, 100)
    with LogReader(storage.url) as log:
        known = log.topics(Subscription(names=(topic.name,)))
        found = known[topic.name]
        assert (found.id, found.streams) == (str(topic.id), topic.streams)
        where = {TopicPartition(topic.name, 0): Extent(100, 820), TopicPartition(topic.name, 1): Extent(0, 0)}
        assert log.extents(known) == where


@pytest.mark.parametrize(("start", "end"), [(0, 820), (0, 1), (400, 401), (399, 701), (819, 820), (5, 5), (7, 8)])
def test_a_range_is_read_to_the_record(storage: BareStorage, topic: Topic, start: int, end: int) -> None:
    assert read(storage, topic, start, end) == list(range(start, end))


def test_records_keep_everything(storage: BareStorage) -> None:
    topic = storage.create_topic("everything")
    storage.append(topic, 0, [(None, b"", DAY, (("a", b"1"), ("a", None))), (b"", None, -1, ())], codec=4)
    with LogReader(storage.url) as log:
        [batch] = log.records(topic.streams[0], Range(TopicPartition("everything", 0), 0, 2), include_headers=True)
    first, second = batch.to_pylist()
    assert (first["key"], first["value"], second["key"], second["value"]) == (None, b"", b"", None)
    assert (first["topic"], first["partition"], first["offset"], first["timestampType"]) == ("everything", 0, 0, 0)
    assert first["timestamp"].timestamp() * 1000 == DAY
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert second["headers"] is None


def test_expired_records_are_missed(storage: BareStorage, topic: Topic) -> None:
    storage.trim(topic, 0, 400)
    with pytest.raises(DataLoss, match=r"offsets 350 to 377 of .*-0 are gone"):
        read(storage, topic, 350, 500)
    assert read(storage, topic, 350, 500, fail_on_data_loss=False) == list(range(378, 500))


def test_a_cleaned_log_has_gaps(storage: BareStorage, topic: Topic) -> None:
    """Batch n begins at n(n-1)/2."""
    bases = [n * (n - 1) // 2 for n in range(1, 41)]
    every_third = set(bases[:30:3])
    storage.clean(topic, 0, 0, 0, 190, every_third)
    storage.clean(topic, 0, 1, 190, 465, every_third)
    left = [offset for n in range(1, 41) for offset in range(bases[n - 1], bases[n - 1] + n) if n % 3 == 1 or n > 30]
    for start, end in ((0, 820), (100, 820), (1, 6), (1, 3), (188, 466), (465, 470)):
        assert read(storage, topic, start, end) == [each for each in left if start <= each < end]
    with pytest.raises(DataLoss, match="offsets 820 to 829"):
        read(storage, topic, 400, 830)
    with LogReader(storage.url) as log:
        known, one = log.topics(Subscription(names=(topic.name,))), TopicPartition(topic.name, 0)
        assert log.extents(known)[one] == Extent(0, 820)
        assert 0 < log.sizes(known, {one: 0})[one] < log.sizes(known, {one: 500})[one]
    storage.trim(topic, 0, 200)
    with pytest.raises(DataLoss, match="offsets 100 to 199"):
        read(storage, topic, 100, 820)
    assert read(storage, topic, 200, 820) == [each for each in left if each >= 200]


def test_a_log_that_is_cleaned_during_a_read_loses_nothing(storage: BareStorage, topic: Topic) -> None:
    bases = [n * (n - 1) // 2 for n in range(1, 41)]
    with LogReader(storage.url) as log:
        found = log.records(topic.streams[0], Range(TopicPartition(topic.name, 0), 0, 820))
        read_before = next(found).column("offset").to_pylist()
        for number, n in enumerate(range(0, 30, 5)):
            storage.clean(topic, 0, number, bases[n], bases[n + 5], bases[n : n + 5])
        assert [*read_before, *(each for batch in found for each in batch.column("offset").to_pylist())] == [
            *range(820)
        ]


def test_committed_reads_end_before_an_open_transaction(storage: BareStorage) -> None:
    topic = storage.create_topic("transactions")
    storage.append(topic, 0, records(5, 0))
    opened = build(records(2, 5), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert storage.append_batch(topic, 0, bytes(opened)) == 5
    storage.append(topic, 0, records(1, 7))
    with LogReader(storage.url, committed=True) as log:
        name = TopicPartition("transactions", 0)
        assert log.extents(log.topics(Subscription(names=(topic.name,)))) == {name: Extent(0, 5)}
        [batch] = log.records(topic.streams[0], Range(name, 0, 5))
        assert batch.num_rows == 5
        with pytest.raises(DataLoss, match="offsets 5 to 6 of transactions-0 are not committed"):
            list(log.records(topic.streams[0], Range(name, 0, 7)))
        storage.append_batch(topic, 0, bytes(build_marker(Marker(7, 0, False, 1), 5)))
        [batch] = log.records(topic.streams[0], Range(name, 0, 9))
        assert batch.column("offset").to_pylist() == [0, 1, 2, 3, 4, 7]
    assert read(storage, topic, 0, 9) == list(range(8))


def test_an_end_that_is_not_there_is_missed(storage: BareStorage, topic: Topic) -> None:
    with pytest.raises(DataLoss, match=r"offsets 820 to 829"):
        read(storage, topic, 800, 830)
    assert read(storage, topic, 800, 830, fail_on_data_loss=False) == list(range(800, 820))


def test_a_log_that_is_gone_is_missed(storage: BareStorage, topic: Topic) -> None:
    storage.delete_topic(topic)
    with pytest.raises(DataLoss):
        read(storage, topic, 0, 10)


def test_an_unknown_topic_is_named(storage: BareStorage) -> None:
    with LogReader(storage.url) as log, pytest.raises(UnknownTopic, match="no topic 'nowhere'"):
        log.topics(Subscription(names=("nowhere",)))


def test_a_topic_created_again_is_another_one(storage: BareStorage) -> None:
    first = storage.create_topic("again")
    storage.delete_topic(first)
    second = storage.create_topic("again")
    with LogReader(storage.url) as log:
        found = log.topics(Subscription(names=("again",)))["again"]
    check_id(found, str(second.id))
    with pytest.raises(TopicReplaced, match=str(first.id)):
        check_id(found, str(first.id))


def test_a_storage_that_does_not_answer_is_named_without_its_password() -> None:
    with LogReader("redis://user:secret@127.0.0.1:1/0") as log, pytest.raises(StorageUnavailable) as failed:
        log.topics(Subscription(names=("t",)))
    assert "redis://user@127.0.0.1:1/0" in str(failed.value)
    assert "secret" not in str(failed.value)


def test_a_batch_that_cannot_be_read_is_an_error_of_its_own(storage: BareStorage) -> None:
    topic = storage.create_topic("corrupt")
    batch = build(records(3))
    batch[61:] = b"\xff" * len(batch[61:])
    storage.append_batch(topic, 0, bytes(batch))
    with LogReader(storage.url) as log, pytest.raises(CorruptLog, match="corrupt-0"):
        list(log.records(topic.streams[0], Range(TopicPartition("corrupt", 0), 0, 3)))


def test_a_batch_that_cannot_be_read_can_be_left_out(storage: BareStorage) -> None:
    topic = storage.create_topic("left-out")
    batch = build(records(3, 10))
    batch[70:] = b"\xff" * len(batch[70:])
    storage.append(topic, 0, records(10))
    storage.append_batch(topic, 0, bytes(batch))
    storage.append(topic, 0, records(10, 13), codec=4)
    told: list[tuple[TopicPartition, int, bytes]] = []
    with LogReader(storage.url) as log:
        rows = log.records(
            topic.streams[0],
            Range(TopicPartition("left-out", 0), 2, 21),
            unreadable=lambda partition, offset, found, _: told.append((partition, offset, found)),
        )
        offsets = [offset for one in rows for offset in one.column("offset").to_pylist()]
    assert offsets == [*range(2, 10), *range(13, 21)]
    assert [(one, offset, bytes(found[61:])) for one, offset, found in told] == [
        (TopicPartition("left-out", 0), 10, bytes(batch[61:]))
    ]


def test_topics_by_pattern_and_offsets_by_time(storage: BareStorage) -> None:
    first, second = storage.create_topic("timed-a"), storage.create_topic("timed-b", partitions=2)
    storage.create_topic("untimed")
    for start in (0, 10, 20):
        storage.append(first, 0, records(10, start))
    storage.append(second, 1, records(5, 100))
    with LogReader(storage.url) as log:
        topics = log.topics(Subscription(pattern="timed-.*"))
        assert sorted(topics) == ["timed-a", "timed-b"]
        places = [TopicPartition("timed-a", 0), TopicPartition("timed-b", 0), TopicPartition("timed-b", 1)]
        assert list(log.offsets_at(topics, dict.fromkeys(places, DAY + 17)).values()) == [17, None, 0]
        assert list(log.offsets_at(topics, dict.fromkeys(places, DAY + 105)).values()) == [None, None, None]
        assert 10 < log.sizes(topics, dict.fromkeys(places, 0))[places[0]] < 60
