"""aiokafka, on an event loop in a thread of its own, so that tests of all clients read the same."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from tests.harness.clients.interface import Client, ClientFailed, Codec, Member, Received, Record, Reset

T = TypeVar("T")
_WAIT_S = 120
_RESET: dict[Reset, str] = {"earliest": "earliest", "latest": "latest", "error": "none"}


class LoopThread:
    """An event loop that others hand coroutines to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it there, wait for it here; an error of the library's comes as ClientFailed."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)
        except KafkaError as error:
            raise ClientFailed(getattr(error, "errno", None), str(error)) from None


_threads: list[LoopThread] = []


def _loop() -> LoopThread:
    """The one loop of this process, started when it is first needed."""
    if not _threads:
        _threads.append(LoopThread())
    return _threads[0]


def _received(record: Any) -> Received:
    return Received(
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers),
    )


class AioKafkaMember(Member):
    """A consumer that was subscribed."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        _loop().run(consumer.start())

    def poll(self, seconds: float, count: int = 500) -> list[Received]:
        """See Member."""
        found = _loop().run(self._consumer.getmany(timeout_ms=int(seconds * 1_000), max_records=count))
        return [_received(record) for records in found.values() for record in records]

    def owned(self) -> frozenset[int]:
        """See Member."""
        return frozenset(one.partition for one in self._consumer.assignment())

    def commit(self) -> None:
        """See Member."""
        _loop().run(self._consumer.commit())

    def close(self) -> None:
        """See Member."""
        _loop().run(self._consumer.stop())


class AioKafka(Client):
    """See Client. Further settings go to every producer and consumer."""

    name = "aiokafka"
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

        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.address,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=largest,
                max_batch_size=max(16_384, largest),
                linger_ms=20,
                **self._settings,
            )
            await producer.start()
            try:
                sent = [
                    await producer.send(
                        topic,
                        record.value,
                        record.key,
                        partition,
                        record.timestamp,
                        list(record.headers),
                    )
                    for record in records
                ]
                await asyncio.gather(*sent)
            finally:
                await producer.stop()

        _loop().run(send())

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

        async def read() -> list[Received]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.address,
                auto_offset_reset=_RESET[reset],
                enable_auto_commit=False,
                **self._settings,
            )
            await consumer.start()
            try:
                place = TopicPartition(topic, partition)
                consumer.assign([place])
                consumer.seek(place, offset)
                found: list[Received] = []
                deadline = time.monotonic() + seconds
                while len(found) < count and time.monotonic() < deadline:
                    got = await consumer.getmany(place, timeout_ms=200, max_records=count - len(found))
                    found += [_received(record) for record in got.get(place, ())]
                return found
            finally:
                await consumer.stop()

        return _loop().run(read())

    def member(self, group: str, topic: str, *, instance: str | None = None, reset: Reset = "earliest") -> Member:
        """See Client."""

        async def make() -> Any:
            return AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.address,
                group_id=group,
                group_instance_id=instance,
                auto_offset_reset=_RESET[reset],
                enable_auto_commit=False,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=200,
                metadata_max_age_ms=2_000,
                **self._settings,
            )

        return AioKafkaMember(_loop().run(make()))
