"""Both sinks under SIGKILL: of everything, of the JVM, of the Python process at work; at every step of a batch.

`make test-crash` goes through all of them, the ordinary run through some. Counted by readers that are not Spark.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from tests.harness.processes import kill_session, of_session

from headrace.testing import Server

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.pipelines]

STEPS = ("write", "written", "commit", "committed")
VICTIMS = ("everything", "jvm", "python")
ALL = [(step, victim) for step in STEPS for victim in VICTIMS]
# A task comes again, and a batch.
SOME = {"delta": [("written", "python"), ("committed", "everything")], "topic": [("written", "python")]}
ROWS = 80
"""Before every run; a batch has half of them."""


def create(broker: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-out", 2)]).values():
        future.result(60)


def fill(broker: Server, topic: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka})
    for number in range(first, first + ROWS):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(60) == 0


def in_topic(broker: Server, topic: str) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "count", "enable.partition.eof": False})
    found: Counter[int] = Counter()
    for number in (0, 1):
        place = TopicPartition(topic, number, 0)
        rest = consumer.get_watermark_offsets(place, 60)[1]
        consumer.assign([place])
        while rest > 0:
            for message in consumer.consume(rest, 10):
                assert message.error() is None
                found[int(message.value() or b"")] += 1
                rest -= 1
    consumer.close()
    return found


def in_table(folder: Path) -> Counter[int]:
    if not DeltaTable.is_deltatable(str(folder / "table")):
        return Counter()
    rows = DeltaTable(folder / "table").to_pyarrow_table().column("value").to_pylist()
    return Counter(map(int, rows))


def run(broker: Server, topic: str, folder: Path, kind: str, step: str | None, victim: str) -> None:
    """Start the query, armed for a step, kill the victim there, and wait for the end of what is left."""
    (folder / "reached").unlink(missing_ok=True)
    if step is not None:
        (folder / f"arm {step}").touch()
    command = [
        sys.executable,
        str(Path(__file__).with_name("killed_writer.py")),
        broker.kafka,
        topic,
        str(folder),
        kind,
    ]
    with (
        open(folder / "log", "ab") as log,  # noqa: PTH123  # what it says, for whoever looks for a failure
        subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=os.environ | {"TMPDIR": str(folder)}
        ) as process,
    ):
        try:
            if step is not None:
                while not (folder / "reached").exists():
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(0.05)
                        raise AssertionError(f"ended before {step}: {(folder / 'log').read_text()[-2000:]}")
                kill(process.pid, victim, int((folder / "reached").read_text()))
            process.wait()
        finally:
            kill_session(process.pid)
    if step is None:
        assert process.returncode == 0, (folder / "log").read_text()[-2000:]


def kill(leader: int, victim: str, at_work: int) -> None:
    if victim == "everything":
        kill_session(leader)
    elif victim == "python":
        os.kill(at_work, signal.SIGKILL)
    else:
        [jvm] = [number for number, line in of_session(leader) if "org.apache.spark.deploy.SparkSubmit" in line]
        os.kill(jvm, signal.SIGKILL)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "topic"])
def test_whatever_is_killed_no_row_is_lost(
    broker: Server, scratch: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """And none is doubled in the table."""
    topic = f"killed-{kind}"
    create(broker, topic)
    rounds = ALL if request.config.getoption("crash_rounds") > 3 else SOME[kind]
    for number, (step, victim) in enumerate(rounds):
        fill(broker, topic, number * ROWS)
        run(broker, topic, scratch, kind, step, victim)
        if kind == "delta":
            assert not [row for row, count in in_table(scratch).items() if count > 1], (step, victim)
    run(broker, topic, scratch, kind, None, "nobody")
    found = in_table(scratch) if kind == "delta" else in_topic(broker, f"{topic}-out")
    assert set(found) == set(range(len(rounds) * ROWS))
    doubled = sum(found.values()) - len(found)
    assert doubled == 0 if kind == "delta" else doubled > 0
    print(f"{kind}: {len(rounds)} kills, 0 lost, {doubled} doubled of {len(found)}")
