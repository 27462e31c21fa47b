"""Java's and Go's Kafka clients on three brokers, of which the one that they need most is killed in their midst.

`make test LANE=maven` and `LANE=go` run this; tests/clients/test_brokers_that_die.py has the clients of Python.
"""

from pathlib import Path

import pytest
from tests.clients.middle import VALUES, feed_while_a_broker_dies, stored
from tests.clients.secured.programs import FranzGo, Java
from tests.harness.brokers import STORAGES, brokers_over
from tests.harness.fed import Fed
from tests.harness.waiting import wait_for

PARTITIONS = 12


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(Java, id="java", marks=pytest.mark.maven),
        pytest.param(FranzGo, id="go", marks=pytest.mark.go),
    ],
)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Java | FranzGo:
    kind: type[Java | FranzGo] = request.param
    return kind(tmp_path_factory.mktemp(kind.name))


@pytest.mark.timeout(1_500)  # it may have to fetch and build its program
@pytest.mark.parametrize("storage", STORAGES)
def test_records_written_while_a_broker_dies_are_read(storage: str, client: Java | FranzGo, tmp_path: Path) -> None:
    """It is in the log once, as both producers are idempotent by default; a group reads it at least once."""
    with brokers_over(storage, broker_session_timeout_ms=1_500, broker_heartbeat_interval_ms=200) as three:
        topic = three.new_topic(PARTITIONS)
        # It leads partitions too.
        killed = three.coordinator(1, topic)
        command, first = client.following(three.kafka, topic)
        with Fed(command, tmp_path) as program:
            program.feed(first)
            feed_while_a_broker_dies(program, three, topic, killed)
            read = program.result()
        assert set(read) == set(VALUES)
        left = three.running[0]
        wait_for(lambda: stored(three, left, topic) == len(VALUES), "each value to be stored once")
