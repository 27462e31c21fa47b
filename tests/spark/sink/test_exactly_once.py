"""Writing `format("headrace")` exactly once: rows become visible together, and once, whatever is repeated."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.committed import committed
from tests.spark.conftest import run_out

from headrace.client.cluster import Cluster
from headrace.client.errors import BatchLost, DecisionError, Fenced, OptionError
from headrace.client.transactions import Transactions
from headrace.spark.sink import decision as rules
from headrace.spark.sink import exactly_once, sink
from headrace.spark.sink.exactly_once import Attempt, Driver, Prepared
from headrace.spark.sink.sink import SinkOptions
from headrace.testing import Server

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


class Sink:
    """One topic, and a query that writes to it without Spark."""

    def __init__(self, bootstrap: str, partitions: int = 2, options: Mapping[str, str] | None = None) -> None:
        self.topic = f"once-{uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, partitions)])[self.topic].result(60)
        given = {"kafka.bootstrap.servers": bootstrap, "topic": self.topic, "deliveryGuarantee": "exactly-once"}
        self.options: SinkOptions = sink.parse(given | {"transactionalId": self.topic} | dict(options or {}))
        self.bootstrap = bootstrap
        self.query = uuid4()
        self.cluster = Cluster(self.options.kafka)
        self.driver = Driver(self.cluster, self.topic)

    def begin(self) -> Attempt:
        return self.driver.begin(self.topic)

    def task(self, attempt: Attempt, batch: int, *values: str, query: UUID | None = None) -> Prepared:
        rows = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
        return exactly_once.prepare(self.options, attempt, query or self.query, batch, iter([rows]))

    def commit(self, attempt: Attempt, batch: int, *prepared: Prepared) -> None:
        places = {one.participant: "" for one in prepared if one.participant is not None}
        self.driver.commit(attempt, batch, self.query, places)

    def visible(self) -> Counter[str]:
        return committed(self.bootstrap, self.topic)


@pytest.fixture(params=["transaction.version", "no feature of this cluster"], ids=["second protocol", "first protocol"])
def target(broker: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sink:
    monkeypatch.setattr("headrace.client.transactions._FEATURE", request.param)
    return Sink(broker.kafka)


def test_the_tasks_of_a_batch_become_visible_by_its_commit(target: Sink) -> None:
    attempt = target.begin()
    # Both in one process, as of a worker with more tasks than cores.
    prepared = [target.task(attempt, 0, "a", "b"), target.task(attempt, 0, "c")]
    assert target.visible() == Counter()
    target.commit(attempt, 0, *prepared)
    assert target.visible() == Counter("abc")
    attempt = target.begin()
    assert (attempt.done, attempt.query) == (1, target.query)
    target.commit(attempt, 1, target.task(attempt, 1, "d"))
    assert target.visible() == Counter("abcd")


def test_a_batch_that_is_done_writes_nothing(target: Sink) -> None:
    attempt = target.begin()
    target.commit(attempt, 0, target.task(attempt, 0, "a"))
    again = target.task(target.begin(), 0, "a", "other")
    assert (again.rows, again.participant) == (2, None)
    assert target.visible() == Counter("a")


def test_a_lost_attempt_is_aborted_by_the_commit(target: Sink) -> None:
    attempt = target.begin()
    # Its transaction is the older one, and readers would wait for it.
    target.task(attempt, 0, "a")
    target.commit(attempt, 0, target.task(attempt, 0, "a"))
    assert target.visible() == Counter("a")


def test_a_later_driver_completes_a_decision(target: Sink) -> None:
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b")]
    _decide(target, attempt, *prepared)
    assert target.visible() == Counter()
    assert target.begin().done == 1
    assert target.visible() == Counter("ab")


def test_a_driver_of_before_cannot_decide(target: Sink) -> None:
    attempt = target.begin()
    prepared = target.task(attempt, 0, "a")
    later = target.begin()
    with pytest.raises(Fenced, match="another driver writes as"):
        target.commit(attempt, 0, prepared)
    target.commit(later, 0, target.task(later, 0, "a"))
    assert target.visible() == Counter("a")


def test_an_aborted_batch_leaves_nothing_behind(target: Sink) -> None:
    attempt = target.begin()
    prepared = target.task(attempt, 0, "a")
    assert prepared.participant is not None
    target.driver.abort(target.topic, 0, [prepared.participant])
    attempt = target.begin()
    assert attempt.done == 0
    prepared = target.task(attempt, 0, "a")
    target.commit(attempt, 0, prepared)
    # The commit may have failed at its end, for all that Spark knows.
    assert prepared.participant is not None
    target.driver.abort(target.topic, 0, [prepared.participant])
    assert target.visible() == Counter("a")


def _abort(target: Sink, prepared: Prepared) -> None:
    """Abort a transaction as its timeout does: another epoch follows."""
    assert prepared.participant is not None
    Transactions(target.cluster).begin(prepared.participant.transactional_id(target.topic))


def _decide(target: Sink, attempt: Attempt, *prepared: Prepared) -> None:
    """Store the decision of batch 0, as a driver that is killed afterwards."""
    participants = [one.participant for one in prepared if one.participant]
    stored = next(rules.commit(0, target.query, participants, {}))
    assert isinstance(stored, rules.Store)
    target.driver.run((step for step in [stored]), attempt.driver, attempt.partitions)  # type: ignore[arg-type]


@pytest.mark.parametrize("aborted", [1, 2])
def test_a_batch_with_transactions_that_timed_out_is_not_decided(target: Sink, aborted: int) -> None:
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b")]
    for one in prepared[:aborted]:
        _abort(target, one)
    with pytest.raises(BatchLost, match=f"{aborted} of its 2 transactions were aborted.*restart the query to write it"):
        target.commit(attempt, 0, *prepared)
    target.driver.abort(target.topic, 0, [one.participant for one in prepared if one.participant])
    attempt = target.begin()
    assert attempt.done == 0
    assert target.visible() == Counter()
    target.commit(attempt, 0, target.task(attempt, 0, "a", "b"))
    assert target.visible() == Counter("ab")


def test_a_batch_whose_transactions_are_not_listed_yet_is_committed(
    target: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b")]
    # As the list of a coordinator that has just started.
    monkeypatch.setattr(Transactions, "ongoing", lambda *_: [])
    target.commit(attempt, 0, *prepared)
    assert target.visible() == Counter("ab")


def test_a_decided_batch_whose_transactions_all_timed_out_is_taken_back(target: Sink) -> None:
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b")]
    _decide(target, attempt, *prepared)
    for one in prepared:
        _abort(target, one)
    attempt = target.begin()
    assert attempt.done == 0
    target.commit(attempt, 0, target.task(attempt, 0, "a", "b"))
    assert target.visible() == Counter("ab")


def test_a_batch_that_is_written_in_part_stops_the_query(target: Sink) -> None:
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b", "c")]
    _decide(target, attempt, *prepared)
    _abort(target, prepared[1])
    for _ in range(3):
        with pytest.raises(BatchLost, match=r"batch 0 is written in part: 1 of its 2 transactions.*2 rows"):
            target.begin()
    assert target.visible() == Counter("a")


@pytest.mark.parametrize("decided", [False, True])
def test_a_query_that_stands_still_for_longer_than_the_timeout(broker: Server, decided: bool) -> None:
    stand_still(broker.kafka, decided=decided)


def stand_still(bootstrap: str, *, decided: bool) -> None:
    """Let the server abort a batch before or after its decision, and write it again."""
    target = Sink(bootstrap, 2, {"kafka.transaction.timeout.ms": "5000"})
    attempt = target.begin()
    prepared = [target.task(attempt, 0, "a"), target.task(attempt, 0, "b")]
    if decided:
        _decide(target, attempt, *prepared)
    transactions = Transactions(target.cluster)
    while transactions.ongoing(lambda name: name.startswith(target.topic)):
        time.sleep(0.05)
    if not decided:
        with pytest.raises(BatchLost, match="2 of its 2 transactions"):
            target.commit(attempt, 0, *prepared)
    attempt = target.begin()
    assert attempt.done == 0
    assert target.visible() == Counter()
    target.commit(attempt, 0, target.task(attempt, 0, "a", "b"))
    assert target.visible() == Counter("ab")


def test_a_sink_belongs_to_one_query(target: Sink) -> None:
    attempt = target.begin()
    target.commit(attempt, 0, target.task(attempt, 0, "a"))
    attempt = target.begin()
    with pytest.raises(DecisionError, match="is that of query"):
        target.task(attempt, 0, "a", query=uuid4())


def test_many_transactions_take_several_partitions(target: Sink) -> None:
    attempt = target.begin()
    prepared = target.task(attempt, 0, "a")
    assert prepared.participant is not None
    many = [replace(prepared.participant, producer_id=number) for number in range(400)]
    decided = rules.Decision(1, target.query, tuple(many))
    target.driver.run((step for step in [rules.Store(decided)]), attempt.driver, 2)  # type: ignore[arg-type]
    assert target.driver.decided(target.topic) == decided


def test_others_offsets_are_no_decision(target: Sink) -> None:
    from headrace.client.offsets import TopicPartition as Place  # noqa: PLC0415

    target.cluster.commit(target.topic, {Place(target.topic, 0): 7})
    with pytest.raises(DecisionError, match="no sink's: choose another 'transactionalId'"):
        target.begin()


def test_a_timeout_above_the_servers_is_refused(broker: Server) -> None:
    target = Sink(broker.kafka, 2, {"kafka.transaction.timeout.ms": "99999999"})
    with pytest.raises(OptionError, match=r"set option 'kafka\.transaction\.timeout\.ms' to at most its .*900,000"):
        target.begin()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "needs option 'topic'"),
        ({"kafka.acks": "1"}, "needs kafka.acks=all"),
        ({"deliveryGuarantee": "at-least-once", "transactionalId": "a"}, "needs deliveryGuarantee=exactly-once"),
        ({"deliveryGuarantee": "once"}, "must be at-least-once or exactly-once"),
        ({"transactionalId": " "}, "is empty"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    given = {"kafka.bootstrap.servers": "a:1", "topic": "t", "deliveryGuarantee": "exactly-once"} | options
    with pytest.raises(OptionError, match=message):
        sink.parse({name: value for name, value in given.items() if value})


@pytest.mark.spark
def test_a_query_from_topic_to_topic(broker: Server, spark: "SparkSession", tmp_path: "Path") -> None:
    copy_and_repeat(broker.kafka, spark, tmp_path)


def copy_and_repeat(bootstrap: str, spark: "SparkSession", folder: "Path") -> None:
    """Copy a topic by a query, and once more after Spark has forgotten its last batch."""
    topic = f"once-{uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-out", 2)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap})

    def run(first: int) -> None:
        for number in range(first, first + 50):
            producer.produce(topic, str(number), partition=number % 2)
        assert producer.flush(60) == 0
        frame = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 30)
            .load()
        )
        run_out(
            frame.writeStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", f"{topic}-out")
            .option("deliveryGuarantee", "exactly-once")
            .option("checkpointLocation", str(folder / "checkpoint"))
        )
        assert committed(bootstrap, f"{topic}-out") == Counter(map(str, range(first + 50)))

    run(0)
    # Spark forgets that the last batch is done, and runs it again.
    commits = sorted((folder / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    run(50)
