"""kafka-python 3. It compresses with optional libraries: without them it refuses the codec."""

import gc
import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from tests.harness.clients.interface import Client, ClientFailed, Codec, Member, Received, Record, Reset

with warnings.catch_warnings():
    # It reads its own schema files by a call that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec
    from kafka.errors import KafkaError

    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

_WAIT_S = 60
_OPTIONAL: dict[Codec, Any] = {
    "snappy": kafka.codec.has_snappy,
    "lz4": kafka.codec.has_lz4,
    "zstd": kafka.codec.has_zstd,
}
INSTALLED: frozenset[Codec] = frozenset(
    {"none", "gzip", *(codec for codec, installed in _OPTIONAL.items() if installed())}
)
_RESET: dict[Reset, str] = {"earliest": "earliest", "latest": "latest", "error": "none"}
_CONSUMER_SETTINGS: dict[str, Any] = {
    "enable_auto_commit": False,
    "max_poll_records": 10_000,
    "reconnect_backoff_max_ms": 200,
    "metrics_enabled": False,
}


def _failed(error: KafkaError) -> ClientFailed:
    return ClientFailed(getattr(error, "errno", None), str(error))


def _received(record: Any) -> Received:
    return Received(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple((name, value) for name, value in record.headers),
    )


class KafkaPythonMember(Member):
    """A consumer that was subscribed."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def poll(self, seconds: float, count: int = 500) -> list[Received]:
        """See Member."""
        try:
            found = self._consumer.poll(timeout_ms=int(seconds * 1_000), max_records=count)
        except KafkaError as error:
            raise _failed(error) from None
        return [_received(record) for records in found.values() for record in records]

    def owned(self) -> frozenset[int]:
        """See Member."""
        return frozenset(one.partition for one in self._consumer.assignment())

    def commit(self) -> None:
        """See Member."""
        try:
            self._consumer.commit()
        except KafkaError as error:
            raise _failed(error) from None

    def close(self) -> None:
        """See Member."""
        self._consumer.close(autocommit=False)
        with warnings.catch_warnings():
            # It drops sockets whose connection was refused; the warnings must not appear in another test.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class KafkaPython(Client):
    """See Client. Further settings go to every producer and consumer."""

    name = "kafka-python"
    codecs = INSTALLED
    null_headers = False
    cannot_send = frozenset({(None, None)})

    def __init__(self, address: str, **settings: Any) -> None:
        super().__init__(address)
        self._settings = settings

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
        if codec not in INSTALLED:
            raise ClientFailed(None, f"kafka-python has no library for {codec} here")
        producer = KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=largest,
            linger_ms=20,
            **self._settings,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    partition,
                    record.timestamp,
                )
                for record in records
            ]
            producer.flush(_WAIT_S)
            for future in sent:
                future.get(_WAIT_S)
        except KafkaError as error:
            raise _failed(error) from None
        finally:
            producer.close()

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
        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            auto_offset_reset=_RESET[reset],
            **_CONSUMER_SETTINGS,
            **self._settings,
        )
        try:
            place = TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            member = KafkaPythonMember(consumer)
            found: list[Received] = []
            deadline = time.monotonic() + seconds
            while len(found) < count and time.monotonic() < deadline:
                found += member.poll(0.2, count - len(found))
            return found
        finally:
            consumer.close(autocommit=False)

    def member(self, group: str, topic: str, *, instance: str | None = None, reset: Reset = "earliest") -> Member:
        """See Client."""
        return KafkaPythonMember(
            KafkaConsumer(
                topic,
                bootstrap_servers=self.address,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset=_RESET[reset],
                session_timeout_ms=6_000,
                heartbeat_interval_ms=200,
                **_CONSUMER_SETTINGS,
                **self._settings,
            )
        )
