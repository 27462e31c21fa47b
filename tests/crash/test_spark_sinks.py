"""The sinks under SIGKILL: of everything, of the JVM, of the Python process at work; at every step of a batch.

`make test LANE=crash` goes through all of them, the ordinary run through some. Counted by readers that are not Spark.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from tests.harness.processes import kill_session, of_session

from headrace.testing import Server

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.pipelines]

STEPS = ("write", "written", "commit", "committed")
VICTIMS = ("everything", "jvm", "python")
ALL = [[(step, victim)] for step in STEPS for victim in VICTIMS]
WITHIN_COMMIT = ("stored", "decided", "some", "all", "completing")
ALL_ONCE = [[(step, victim)] for step in (*STEPS[:3], *WITHIN_COMMIT, STEPS[3]) for victim in VICTIMS]
# A task comes again, and a batch. A query outlives its worker: the next step is killed in the same run.
SOME = {"delta": [[("written", "python"), ("committed", "everything")]], "topic": [[("written", "python")]]}
SOME["once"] = [[("written", "python"), ("some", "everything")]]
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


def committed_in_topic(broker: Server, topic: str) -> Counter[int]:
    settings = {"bootstrap.servers": broker.kafka, "group.id": "count", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
    found: Counter[int] = Counter()
    ended: set[int | None] = set()
    while len(ended) < 2:
        message = consumer.poll(10)
        error = None if message is None else message.error()
        if message is not None and error is None:
            found[int(message.value() or b"")] += 1
        elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def in_topic(broker: Server, topic: str) -> Counter[int]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "count", "enable.partition.eof": False})
    found: Counter[int] = Counter()
    for number in (0, 1):
        place = TopicPartition(topic, number, 0)
        rest = consumer.get_watermark_offsets(place, 60)[1]
        consumer.assign([place])
        while rest > 0:
            for message in consumer.consume(rest, 10):
                # What comes instead of a record is about a connection, which the client makes again.
                if message.error() is None:
                    found[int(message.value() or b"")] += 1
                    rest -= 1
    consumer.close()
    return found


def in_table(folder: Path) -> Counter[int]:
    if not DeltaTable.is_deltatable(str(folder / "table")):
        return Counter()
    rows = DeltaTable(folder / "table").to_pyarrow_table().column("value").to_pylist()
    return Counter(map(int, rows))


def run(broker: Server, topic: str, folder: Path, kind: str, kills: Sequence[tuple[str, str]] = ()) -> int:
    """Start the query, kill a victim at each step in turn, and wait for the end of what is left; its status."""
    arm(folder, kills[:1])
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
            for number, (step, victim) in enumerate(kills, 1):
                at_work = reached(folder, step, process)
                # Before the query goes on: it may be there in no time.
                arm(folder, kills[number : number + 1])
                kill(process.pid, victim, at_work)
            return process.wait()
        finally:
            kill_session(process.pid)


def arm(folder: Path, kills: Sequence[tuple[str, str]]) -> None:
    for step, _ in kills:
        (folder / f"arm {step}").touch()


def reached(folder: Path, step: str, process: "subprocess.Popen[bytes]") -> int:
    """Wait until a process of the query has reached the step; return its id."""
    told = folder / "reached"
    while not told.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise AssertionError(f"ended before {step}: {(folder / 'log').read_text()[-2000:]}")
    number = int(told.read_text())
    told.unlink()
    return number


def kill(leader: int, victim: str, at_work: int) -> None:
    if victim == "everything":
        kill_session(leader)
    elif victim == "python":
        os.kill(at_work, signal.SIGKILL)
    else:
        for number, line in of_session(leader):
            # What it is just starting has its command line for a moment.
            if "org.apache.spark.deploy.SparkSubmit" in line:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "topic", "once"])
def test_whatever_is_killed_no_row_is_lost(
    broker: Server, scratch: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """No record is duplicated in the table, nor in the topic that is written exactly once."""
    topic = f"killed-{kind}"
    create(broker, topic)
    everything = ALL_ONCE if kind == "once" else ALL
    rounds = everything if request.config.getoption("crash_rounds") > 3 else SOME[kind]
    for number, kills in enumerate(rounds):
        fill(broker, topic, number * ROWS)
        status = run(broker, topic, scratch, kind, kills)
        if kind == "delta":
            assert not [row for row, count in in_table(scratch).items() if count > 1], kills
        elif kind == "once":
            assert not [row for row, count in committed_in_topic(broker, f"{topic}-out").items() if count > 1], kills
    # A query that has lost a task's worker only has come to its end by itself.
    if status != 0:
        assert run(broker, topic, scratch, kind) == 0, (scratch / "log").read_text()[-2000:]
    if kind == "once":
        found = committed_in_topic(broker, f"{topic}-out")
    else:
        found = in_table(scratch) if kind == "delta" else in_topic(broker, f"{topic}-out")
    assert set(found) == set(range(len(rounds) * ROWS))
    doubled = sum(found.values()) - len(found)
    assert doubled > 0 if kind == "topic" else doubled == 0
    print(f"{kind}: {sum(map(len, rounds))} kills, 0 lost, {doubled} doubled of {len(found)}")
