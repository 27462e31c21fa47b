"""The sinks under SIGKILL: of everything, of the JVM, of the Python process at work; at every step of a batch.

`make test LANE=crash` goes through all of them, the ordinary run through some. Counted by readers that are not Spark.
All steps of the sink that writes exactly once are in `test_exactly_once_sink`.
"""

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from tests.crash.killed_query import STEPS, VICTIMS, Copy, Session, doubled

from headrace.testing import Server

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.pipelines]

ALL = [[(step, victim)] for step in STEPS for victim in VICTIMS]
# A task comes again, and a batch. A query outlives its worker: the next step is killed in the same run.
SOME = {"delta": [[("written", "python"), ("committed", "everything")]], "topic": [[("written", "python")]]}
SOME["once"] = [[("written", "python"), ("some", "everything")]]
ROWS = 80
"""Before every run; a batch has half of them."""


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["delta", "topic", "once"])
def test_whatever_is_killed_no_row_is_lost(
    broker: Server, scratch: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """No record is duplicated in the table, nor in the topic that is written exactly once."""
    copy = Copy(broker.kafka, f"killed-{kind}", scratch)
    copy.create()
    session = Session([copy], scratch, kind, {}, {})
    rounds = ALL if kind != "once" and request.config.getoption("crash_rounds") > 3 else SOME[kind]
    for number, kills in enumerate(rounds):
        copy.fill(number * ROWS, ROWS)
        ended = session.run([({copy.topic: step}, victim) for step, victim in kills])
        assert ended.reached == [{copy.topic}] * len(kills), session.log()[-2000:]
        if kind == "delta":
            assert not doubled(in_table(scratch)), kills
        elif kind == "once":
            assert not doubled(copy.committed()), kills
    # A query that has lost a task's worker only has come to its end by itself.
    if ended.status != 0:
        session.run_out()
    if kind == "once":
        found = copy.committed()
    else:
        found = in_table(scratch) if kind == "delta" else in_topic(broker, f"{copy.topic}-out")
    assert set(found) == set(range(len(rounds) * ROWS))
    again = sum(found.values()) - len(found)
    assert again > 0 if kind == "topic" else again == 0
    print(f"{kind}: {sum(map(len, rounds))} kills, 0 lost, {again} doubled of {len(found)}")
