import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy_exactly_once.py"
PARTITIONS = 2
RECORDS = 100


def fill(broker: Server) -> None:
    """Records of a transaction that was committed, and of one that was aborted."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.create_topics([NewTopic(name, PARTITIONS) for name in ("orders", "orders-copy")]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "shop"})
    producer.init_transactions(60)
    for first, commit in ((0, True), (RECORDS, False)):
        producer.begin_transaction()
        for number in range(first, first + RECORDS):
            producer.produce("orders", str(number), f"key {number}", partition=number % PARTITIONS)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)


def copied(broker: Server) -> list[tuple[bytes | None, bytes | None]]:
    """What readers of committed records see: after it, they wait for more."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "check", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.partition.eof": True})
    consumer.assign([TopicPartition("orders-copy", number, 0) for number in range(PARTITIONS)])
    found = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(10)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value()))
        ended += message is not None and message.error() is not None
    consumer.close()
    return found


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_committed_records_are_copied_once(broker: Server, scratch: Path) -> None:
    fill(broker)
    command = [sys.executable, str(EXAMPLE), "--kafka", broker.kafka, "--checkpoint", str(scratch / "checkpoint")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    expected = sorted((b"key %d" % number, b"%d" % number) for number in range(RECORDS))
    assert sorted(copied(broker), key=repr) == sorted(expected, key=repr)
