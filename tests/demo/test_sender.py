import time
import zlib
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Message, TopicPartition

from headrace.demo.sender import Sender
from headrace.demo.watch import Watch
from headrace.testing import Server, server


def all_records(kafka: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("flights", number, 0) for number in range(2)])
    records: list[Message] = []
    try:
        while len(records) < count:
            records += consumer.consume(count, timeout=60) or pytest.fail("no more records came")
    finally:
        consumer.close()
    return records


def send(running: Server, package: Path, rate: int, topic: str = "flights") -> Sender:
    sender = Sender(running.kafka, topic, package, rate=rate, limit=None)
    sender.start()
    sender.join()
    return sender


@pytest.mark.parametrize("rate", [0, 100])
def test_flights_arrive_by_carrier_in_order_with_the_time_of_sending(package: Path, rate: int) -> None:
    with server() as running:
        watch = Watch(running.kafka, "flights", 2, ("readers", "archive"))
        watch.create_topics()
        began = int(time.time() * 1000)
        sender = send(running, package, rate)
        assert (sender.sent, sender.acknowledged, sender.error) == (6, 6, None)
        records = all_records(running.kafka, 6)
        events = [msgspec.json.decode(record.value() or b"") for record in records]
        seen = watch.look_again()
    assert [record.key() for record in records] == [event["carrier"].encode() for event in events]
    by_carrier = {
        carrier: [event["flight"] for event in events if event["carrier"] == carrier] for carrier in ("AA", "B6", "UA")
    }
    assert by_carrier == {"AA": [3, 2], "B6": [4], "UA": [6, 1, 5]}
    assert sender.checksum == sum(zlib.crc32(record.value() or b"") for record in records)
    for record in records:
        kind, timestamp = record.timestamp()
        assert kind == TIMESTAMP_CREATE_TIME
        assert began <= timestamp <= time.time() * 1000
    assert sum(seen.ends.values()) == 6
    assert (seen.lag("readers"), seen.members) == (6, {})


def test_errors_are_reported(package: Path) -> None:
    with server() as running:
        sender = send(running, package, 0, topic="not a/topic")
    assert sender.error is not None
    assert sender.acknowledged == 0
