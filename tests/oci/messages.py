"""Messages of a test's stream."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

from headrace.testing import InProcessServer


def at(time_ms: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)).isoformat()


def produce(
    server: InProcessServer,
    topic: str,
    records: Sequence[tuple[bytes | None, bytes | None, int]],
    codec: str = "none",
    headers: dict[str, str | bytes | None] | None = None,
) -> None:
    producer = Producer({"bootstrap.servers": server.kafka, "compression.codec": codec, "linger.ms": 60_000})
    for key, value, time_ms in records:
        producer.produce(topic, value, key, partition=0, timestamp=time_ms, headers=headers or {})
    assert producer.flush(60) == 0
