"""Java's and Go's Kafka clients on three brokers, of which the one that they need most is killed while they write.

`make test-maven` and `make test-go` run this; tests/clients/test_brokers_that_die.py has the clients of Python.
"""

import json
import subprocess
from pathlib import Path

import pytest
from tests.clients.secured.programs import FranzGo, Java
from tests.harness.brokers import brokers, wait_for

PARTITIONS, VALUES = 6, 300
BEFORE = 20
"""Records that are there when the broker is killed."""
RUN_S = 180


@pytest.mark.timeout(1_500)  # it may have to fetch and build its program
@pytest.mark.parametrize(
    "kind",
    [pytest.param(Java, id="java", marks=pytest.mark.maven), pytest.param(FranzGo, id="go", marks=pytest.mark.go)],
)
def test_what_is_written_while_a_broker_dies_is_read_once(kind: type[Java | FranzGo], tmp_path: Path) -> None:
    client = kind(tmp_path)
    values = [f"value-{number}" for number in range(VALUES)]
    with brokers(3, broker_session_timeout_ms=1_500, broker_heartbeat_interval_ms=200) as three:
        three.asked(1, lambda wire: wire.create("flights", PARTITIONS))
        wait_for(lambda: all(len(three.leaders(node, "flights")) == PARTITIONS for node in three.servers), "the topic")
        leaders = three.leaders(1, "flights")

        def end(partition: int) -> int:
            return int(
                three.asked(leaders[partition], lambda wire: wire.offset("flights", -1, partition=partition)).offset
            )

        command, sent = client.plainly(three.kafka, "flights", values)
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            try:
                assert program.stdin is not None
                program.stdin.write(sent)
                program.stdin.close()
                program.stdin = None
                wait_for(lambda: sum(map(end, leaders)) >= BEFORE, "the first records")
                # It leads partitions too.
                three.servers[three.coordinator(1, "flights")].kill()
                output, said = program.communicate(timeout=RUN_S)
            finally:
                program.kill()
    assert program.returncode == 0, output + said
    assert sorted(json.loads(output.splitlines()[-1])) == sorted(values)
