"""A server that is killed moves no partition of a consumer group (KIP-848)."""

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer
from tests.harness.wire import Wire

from headrace.testing import server

PARTITIONS = {"flights": 6, "trains": 3}
EACH = 60


def test_members_go_on_after_a_kill(tmp_path: Path) -> None:
    moves: list[str] = []
    got: list[tuple[str, int, int]] = []

    with server(data=tmp_path) as started:

        def member(*topics: str) -> Consumer:
            config = {
                "bootstrap.servers": started.kafka,
                "group.id": "board",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 500,
            }
            consumer = Consumer(config)
            consumer.subscribe(
                list(topics),
                on_assign=lambda *_: moves.append("assigned"),
                on_revoke=lambda *_: moves.append("revoked"),
                on_lost=lambda *_: moves.append("lost"),
            )
            return consumer

        def until(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 60
            while not condition():
                assert time.monotonic() < deadline
                for consumer in consumers:
                    record = consumer.poll(0.02)
                    if record is not None and record.error() is None:
                        got.append((str(record.topic()), int(record.partition() or 0), int(record.offset() or 0)))

        with Wire(started.kafka) as wire:
            for topic, partitions in PARTITIONS.items():
                wire.create(topic, partitions)
        consumers = [member("flights"), member("^fl.*", "^tr.*"), member("^tr.*")]
        until(lambda: sum(len(each.assignment()) for each in consumers) == 9 and all(map(_owns, consumers)))
        settled = time.monotonic() + 2
        until(lambda: time.monotonic() > settled)
        moves.clear()
        started.kill()
        started.start()
        producer = Producer({"bootstrap.servers": started.kafka})
        for index in range(EACH):
            for topic, partitions in PARTITIONS.items():
                producer.produce(topic, b"x", partition=index % partitions)
        assert producer.flush(30) == 0
        until(lambda: len(got) >= 2 * EACH)
        for each in consumers:
            each.commit(asynchronous=False)
        assert moves == []
        assert len(set(got)) == len(got) == 2 * EACH
        for each in consumers:
            each.close()


def _owns(consumer: Consumer) -> bool:
    return bool(consumer.assignment())
