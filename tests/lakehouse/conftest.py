"""A server, a topic whose old records go to an archive, and clients that know nothing of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tests.harness.archive import Archiver
from tests.harness.wire import Wire, batch

from headrace.testing import InProcessServer

T0 = 1_700_000_000_000
Record = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""Offset, time, key, value, headers."""


def a_record(offset: int) -> Record:
    """Identified by its offset; of ten in a row some have nulls, empty values and headers."""
    key = None if offset % 10 == 1 else b"" if offset % 10 == 2 else b"k%d" % offset
    value = None if offset % 10 == 3 else b"" if offset % 10 == 4 else b"v%d" % offset * 20
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if offset % 10 > 6:
        headers = (("trace", b"%d" % offset), ("trace", None), ("é", b""))
    return offset, T0 + offset, key, value, headers


class Kept:
    """A topic with `remote.storage.enable`, its archive, and its records as they were written."""

    def __init__(self, server: InProcessServer, folder: Path, name: str) -> None:
        self.server = server
        self.folder = folder
        self.name = name
        self.written: list[Record] = []

    def create(self, **config: object) -> "Kept":
        """A topic that keeps everything, and next to nothing in Redis."""
        kept = {"remote_storage_enable": "true", "retention_ms": -1, "local_retention_ms": 1_000}
        with Wire(self.server.kafka) as wire:
            wire.create(self.name, 1, **(kept | config))
            wire.create(self.name + "-after", retention_ms=1)
        self.archiver = Archiver(self.server.storage, self.name, self.folder / "table", committed=True)
        return self

    def transact(self, *records: Record, commit: bool) -> None:
        """A transaction. Its marker has the offset after the records."""
        producer = Producer({"bootstrap.servers": self.server.kafka, "transactional.id": self.name})
        producer.init_transactions(60)
        producer.begin_transaction()
        for _, at, key, value, headers in records:
            producer.produce(self.name, value, key, 0, timestamp=at, headers=list(headers))
        assert producer.flush(60) == 0
        if commit:
            producer.commit_transaction(60)
            self.written += records
        else:
            producer.abort_transaction(60)

    def produce(self, *records: Record, codec: str = "none") -> None:
        """Each call is a batch of its own, or more."""
        producer = Producer({"bootstrap.servers": self.server.kafka, "linger.ms": 1, "compression.type": codec})
        for _, at, key, value, headers in records:
            producer.produce(self.name, value, key, 0, timestamp=at, headers=list(headers))
        assert producer.flush(60) == 0
        self.written += records

    def fill(self, count: int, codec: str = "zstd") -> "Kept":
        """So many records more."""
        for first in range(len(self.written), len(self.written) + count, 20):
            self.produce(*[a_record(offset) for offset in range(first, first + 20)], codec=codec)
        return self

    def archive(self, up_to: int | None = None, **files: int) -> None:
        """Archive all records, or those before an offset."""
        self.archiver.archive(len(self.written) if up_to is None else up_to, **files)

    def retain(self) -> tuple[int, int]:
        """Let retention come by; where the log starts, and where it starts in Redis."""
        after = self.name + "-after"
        with Wire(self.server.kafka) as wire:
            # Topics are trimmed in the order in which they were created: when this one was, ours has been.
            end = wire.produce(after, batch(b"old", timestamp=T0)).base_offset + 1
            self.server.clock.advance(minutes=6)
            while wire.offset(after, -2).offset < end:
                continue
        return self.starts()

    def starts(self) -> tuple[int, int]:
        """Where the log starts, and where it starts in Redis."""
        with Wire(self.server.kafka) as wire:
            return wire.offset(self.name, -2).offset, wire.offset(self.name, -4, version=8).offset

    def found(self, timestamp: int) -> tuple[int, int]:
        """Offset and time that ListOffsets finds."""
        with Wire(self.server.kafka) as wire:
            answer = wire.offset(self.name, timestamp)
            return answer.offset, answer.timestamp

    def error(self, offset: int) -> int:
        """The error code of a Fetch at an offset."""
        with Wire(self.server.kafka) as wire:
            return int(wire.fetch(self.name, offset).error_code)

    def read(self, offset: int, count: int, **options: Any) -> list[Record]:
        """What a consumer gets from an offset on."""
        settings = {"bootstrap.servers": self.server.kafka, "group.id": "reader", "auto.offset.reset": "error"}
        consumer = Consumer(settings | {"enable.auto.commit": False} | options)
        try:
            consumer.assign([TopicPartition(self.name, 0, offset)])
            found: list[Record] = []
            while len(found) < count:
                for message in consumer.consume(count - len(found), 10):
                    if message.error():
                        raise KafkaException(message.error())
                    headers: Any = tuple(message.headers() or ())
                    found.append(
                        (message.offset() or 0, message.timestamp()[1], message.key(), message.value(), headers)
                    )
            return found
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with InProcessServer(headrace_cache_bytes=0) as started:
        yield started


@pytest.fixture
def kept(server: InProcessServer, tmp_path: Path, request: pytest.FixtureRequest) -> Kept:
    return Kept(server, tmp_path, "".join(each if each.isalnum() else "-" for each in request.node.name)[:60])
