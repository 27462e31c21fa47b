"""What the members of a group were given, held against what was acknowledged to the producer.

The anomalies of Jepsen's Kafka workload: a record that is lost or never seen, polls that go back, one offset with two
records. What a group is given twice is no anomaly: it promises at least once.
"""

import threading
from collections import defaultdict
from struct import Struct
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.harness.ledger import Ledger

_NUMBER = Struct(">q")


class Anomaly(AssertionError):
    """Something that must not happen; the message says what."""


class Watched:
    """The members of a group, each in a thread of its own."""

    def __init__(self, kafka: str, topic: str, group: str, members: int = 3) -> None:
        """Start them."""
        self.anomalies: list[str] = []
        self.seen: dict[int, set[int]] = defaultdict(set)
        """Partition -> numbers of the records that anybody was given."""
        self.given = 0
        """How many records in all, those that came twice included."""
        self._places: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._settings = {
            "bootstrap.servers": kafka,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 500,
            "auto.commit.interval.ms": 300,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 500,
            "check.crcs": True,
            "log_level": 0,
        }
        self._threads = [threading.Thread(target=self._read, args=(topic, name)) for name in range(members)]
        for thread in self._threads:
            thread.start()

    def _read(self, topic: str, name: int) -> None:
        consumer = Consumer(dict(self._settings))
        last: dict[int, int] = {}

        def begin(_: Consumer, __: list[TopicPartition]) -> None:
            last.clear()

        consumer.subscribe([topic], on_assign=begin, on_revoke=begin, on_lost=begin)
        try:
            while not self._stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                        self.anomalies.append(f"member {name} was told {error}")
                    continue
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                self._take(name, partition, offset, _NUMBER.unpack_from(value)[0], last)
        finally:
            consumer.close()

    def _take(self, name: int, partition: int, offset: int, number: int, last: dict[int, int]) -> None:
        with self._lock:
            self.given += 1
            if offset <= last.get(partition, -1):
                self.anomalies.append(f"member {name} was given {partition}:{offset} after {last[partition]}")
            last[partition] = offset
            before = self._places.setdefault((partition, offset), number)
            if before != number:
                self.anomalies.append(f"{partition}:{offset} was record {before} and is record {number}")
            self.seen[partition].add(number)

    def unseen(self, ledger: Ledger) -> int:
        """How many acknowledged records nobody was given yet."""
        with self._lock:
            return sum(len(told.keys() - self.seen[place]) for place, told in enumerate(ledger.acknowledged))

    def check(self, ledger: Ledger) -> None:
        """Raises Anomaly. Call it once nothing is unseen."""
        with self._lock:
            for partition, acknowledged in enumerate(ledger.acknowledged):
                for number, offset in acknowledged.items():
                    if self._places.get((partition, offset), number) != number:
                        self.anomalies.append(f"{partition}:{offset} was acknowledged as record {number}")
        if self.anomalies:
            raise Anomaly("; ".join(self.anomalies[:10]))

    def stop(self) -> None:
        """End them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
