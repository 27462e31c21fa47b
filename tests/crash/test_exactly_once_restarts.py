"""Servers are killed at each step of a batch of the exactly-once sink, which goes on: without Spark, so in seconds.

`test_exactly_once_sink` does the same with Spark.
"""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.harness.sink_servers import Target, target
from tests.harness.sink_steps import report_steps
from tests.spark.sink.test_exactly_once import Sink

from headrace.spark.sink import exactly_once
from headrace.spark.sink.exactly_once import Attempt, Prepared

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

STEPS = ("begun", "sending", "written", "stored", "decided", "some", "all", "completing")


@pytest.fixture(
    scope="module", params=["headrace", pytest.param("kafka", marks=[pytest.mark.maven, pytest.mark.matrix])]
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(request.param, tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.mark.parametrize("victim", ["broker", "storage"])
@pytest.mark.parametrize("step", STEPS)
def test_a_batch_goes_on_when_a_server_is_killed(cluster: Target, step: str, victim: str) -> None:
    if victim not in cluster.victims:
        pytest.skip("a broker of Kafka is its own storage")
    # Each row is a request of its own.
    sink = Sink(cluster.kafka, 2, {"kafka.batch.size": "1", "kafka.request.timeout.ms": "120000"})
    killed: list[str] = []

    def reached(name: str) -> None:
        if name == step and not killed:
            cluster.victims[victim]()
            killed.append(name)

    def task(attempt: Attempt, *values: str) -> Prepared:
        def rows() -> Iterator[pa.RecordBatch]:
            for value in values:
                yield pa.RecordBatch.from_pydict({"value": pa.array([value], pa.string())})
                reached("sending")

        return exactly_once.prepare(sink.options, attempt, sink.query, 0, rows())

    attempt = sink.begin()
    reached("begun")
    prepared = [task(attempt, "a", "b", "c"), task(attempt, "d")]
    reached("written")
    restore = report_steps(len(prepared), reached)
    try:
        sink.commit(attempt, 0, *prepared)
    finally:
        restore()
    assert killed == [step]
    # What is acknowledged is decided, and visible as soon as the server has ended the transactions.
    later = sink.begin()
    assert later.done == 1
    assert sink.visible() == Counter("abcd")
    sink.commit(later, 1, sink.task(later, 1, "e"))
    assert sink.visible() == Counter("abcde")
