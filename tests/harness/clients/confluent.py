"""confluent-kafka: librdkafka, as the binary wheel brings it."""

import time
from collections.abc import Sequence
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.harness.clients.interface import Client, ClientFailed, Codec, Member, Received, Record, Reset

_GROUP_SETTINGS: dict[str, Any] = {
    "enable.auto.commit": False,
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 200,
    "topic.metadata.refresh.interval.ms": 1_000,
    "reconnect.backoff.max.ms": 200,
}


def _failed(error: KafkaError) -> ClientFailed:
    return ClientFailed(error.code(), str(error))


def _received(message: Message) -> Received:
    headers: Any = message.headers() or ()
    return Received(
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp=message.timestamp()[1],
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple(headers),
    )


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _taken(messages: list[Message]) -> list[Received]:
    """The records among the messages. Raises ClientFailed for an error that the library does not get over itself."""
    for message in messages:
        error = message.error()
        if error is not None and error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
            raise _failed(error)
    return [_received(message) for message in messages if message.error() is None]


class ConfluentMember(Member):
    """A consumer that was subscribed."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def poll(self, seconds: float, count: int = 500) -> list[Received]:
        """See Member."""
        # `consume` would wait for all `count` of them.
        first = self._consumer.poll(seconds)
        return [] if first is None else _taken([first, *self._consumer.consume(count - 1, 0)])

    def owned(self) -> frozenset[int]:
        """See Member."""
        return frozenset(one.partition for one in self._consumer.assignment())

    def commit(self) -> None:
        """See Member."""
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            raise _failed(error.args[0]) from None

    def close(self) -> None:
        """See Member."""
        self._consumer.close()


class Confluent(Client):
    """See Client. Further settings of librdkafka go to every producer and consumer."""

    name = "confluent-kafka"

    def __init__(self, address: str, **settings: Any) -> None:
        super().__init__(address)
        self._settings = {name.replace("_", "."): value for name, value in settings.items()}

    def send(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        partition: int = 0,
        codec: Codec = "none",
        acks: Literal["0", "1", "all"] = "all",
        idempotent: bool = False,
        largest: int = 1_000_000,
    ) -> None:
        """See Client."""
        producer = Producer({
            "bootstrap.servers": self.address,
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": idempotent,
            "message.max.bytes": largest,
            "linger.ms": 20,
            "message.timeout.ms": 60_000,
            **self._settings,
        })  # fmt: skip
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                timestamp=record.timestamp or 0,
                headers=list(record.headers),
            )
        left = producer.flush(70)
        if failures:
            raise _failed(failures[0])
        if left:
            raise ClientFailed(None, f"{left} records were not delivered")

    def read(
        self,
        topic: str,
        count: int,
        *,
        partition: int = 0,
        offset: int = 0,
        reset: Reset = "error",
        seconds: float = 60,
    ) -> list[Received]:
        """See Client."""
        consumer = Consumer({
            "bootstrap.servers": self.address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": reset,
            **self._settings,
        })  # fmt: skip
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            found: list[Received] = []
            deadline = time.monotonic() + seconds
            while len(found) < count and time.monotonic() < deadline:
                found += _taken(consumer.consume(count - len(found), 0.2))
            return found
        finally:
            consumer.close()

    def member(self, group: str, topic: str, *, instance: str | None = None, reset: Reset = "earliest") -> Member:
        """See Client."""
        settings = {
            "bootstrap.servers": self.address,
            "group.id": group,
            "auto.offset.reset": reset,
            **_GROUP_SETTINGS,
            **self._settings,
        }
        if settings.get("group.protocol") == "consumer":
            # The server decides these.
            del settings["session.timeout.ms"], settings["heartbeat.interval.ms"]
        if instance is not None:
            settings["group.instance.id"] = instance
        consumer = Consumer(settings)
        consumer.subscribe([topic])
        return ConfluentMember(consumer)
