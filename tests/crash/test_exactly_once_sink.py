"""The sink that writes exactly once: every step of a batch, and every victim, with Headrace and with Apache Kafka.

`make test LANE=crash-spark` runs it. Readers of committed records that are not Spark count.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.crash.killed_query import ONCE_STEPS, VICTIMS, Copy, Session, doubled
from tests.harness.sink_servers import Target, target

from headrace.client import options as client_options
from headrace.client.cluster import Cluster
from headrace.client.transactions import Transactions

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.matrix, pytest.mark.timeout(7200)]

BATCH = 40
"""Rows of a batch."""
ROWS = 2 * BATCH
"""Of each query, before each kill."""
PATIENT = {"kafka.request.timeout.ms": "120000"}
"""The machine may be busy with other tests while a broker starts."""
SHORT = PATIENT | {"kafka.transaction.timeout.ms": "30000"}
"""Long enough for a batch on a busy machine to come to its decision."""


@pytest.fixture(scope="module", params=["headrace", pytest.param("kafka", marks=pytest.mark.maven)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(request.param, tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.mark.parametrize("victims", [VICTIMS, ("broker",), ("storage",)], ids="-".join)
def test_each_row_is_there_once_whatever_is_killed(cluster: Target, victims: tuple[str, ...], tmp_path: Path) -> None:
    """A query for each step; all of them are at their steps when a victim is killed, and the next runs go on."""
    if not {*victims} <= {*VICTIMS, *cluster.victims}:
        pytest.skip("a broker of Kafka is its own storage")
    copies = {step: Copy(cluster.kafka, f"killed-{victims[0]}-{step}", tmp_path / step) for step in ONCE_STEPS}
    for copy in copies.values():
        copy.create()
    session = Session([*copies.values()], tmp_path, "once", cluster.victims, PATIENT)
    for number, victim in enumerate(victims):
        for copy in copies.values():
            copy.fill(number * ROWS, ROWS)
        left = dict(copies)
        while left:
            ended = session.run([({copy.topic: step for step, copy in left.items()}, victim)])
            [reached] = ended.reached
            assert reached or session.only_slow(), session.log()[-4000:]
            for step, copy in [*left.items()]:
                if copy.topic in reached:
                    found = copy.committed()
                    said = f"{cluster.name}: {victim} killed at {step}: then {len(found)} of {(number + 1) * ROWS}"
                    print(f"{said}, {len(doubled(found))} doubled", flush=True)
                    assert not doubled(found)
                    del left[step]
    session.run_out()
    for step, copy in copies.items():
        found = copy.committed()
        lost = {*range(len(victims) * ROWS)} - {*found}
        print(
            f"{cluster.name}: {len(victims)} kills at {step}: {len(lost)} lost, {len(doubled(found))} doubled",
            flush=True,
        )
        assert not lost
        assert not doubled(found)
        assert len(found) == len(victims) * ROWS


def no_more_ongoing(cluster: Target) -> None:
    """Wait until the server has aborted every open transaction."""
    given = client_options.parse({client_options.SERVERS: cluster.kafka})
    assert given is not None
    transactions = Transactions(Cluster(given))
    while transactions.ongoing(bool):
        time.sleep(0.2)


def test_a_query_that_is_stopped_for_longer_than_the_timeout(cluster: Target, tmp_path: Path) -> None:
    """It dies, or stands still. Before the decision nothing is lost; of a part after it, nothing is swallowed."""
    copies = {step: Copy(cluster.kafka, f"stopped-{step}", tmp_path / step) for step in ("commit", "stored", "decided")}
    parted = Copy(cluster.kafka, "stopped-some", tmp_path / "some")
    for copy in (*copies.values(), parted):
        copy.create()
        copy.fill(0, BATCH)
    aborted = partial(no_more_ongoing, cluster)
    session = Session([*copies.values(), parted], tmp_path, "once", {"nobody": aborted}, SHORT)
    steps = {copy.topic: step for step, copy in (copies | {"some": parted}).items()}
    assert session.run([(steps, "everything")]).reached == [set(steps)], session.log()
    aborted()
    assert [len(copy.committed()) for copy in copies.values()] == [0, 0, 0]
    part = parted.committed()
    assert len(part) == BATCH // 2

    steps = {copy.topic: step for step, copy in copies.items()}
    assert session.run([(steps, "nobody")]).reached == [set(steps)], session.log()
    for step in ("commit", "decided"):
        assert "batch 0: 2 of its 2 transactions were aborted, by their timeout" in copies[step].failure()
    # Its own transaction was aborted.
    assert "another driver writes as" in copies["stored"].failure()
    in_part = "batch 0 is written in part: 1 of its 2 transactions were not committed. Not in the topic"
    assert in_part in parted.failure()
    assert [len(copy.committed()) for copy in copies.values()] == [0, 0, 0]
    assert parted.committed() == part

    assert replace(session, options=PATIENT).run().status == 1
    assert in_part in parted.failure()
    for step, copy in copies.items():
        assert copy.committed() == Counter(range(BATCH)), step
    assert parted.committed() == part
    # What the error says: the rows that are there come again.
    sink = json.loads((parted.folder / "checkpoint" / "metadata").read_text())["id"]
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    admin.delete_consumer_groups([sink])[sink].result(60)
    replace(session, options=PATIENT).run_out()
    found = parted.committed()
    assert set(found) == set(range(BATCH))
    assert sorted(doubled(found)) == sorted(part)
    print(f"{cluster.name}: 6 stops, 0 lost, 0 doubled; {len(part)} of {BATCH} reported as written in part", flush=True)
