"""Numbered records: what a producer sent and what was acknowledged to it, held against what the log has.

    with Ledger(started.kafka, "kept", partitions=3) as ledger:
        ledger.send(10_000)
        ...                     # kill, restart
        ledger.settle()
    ledger.check(started.kafka)

Every record's value begins with its number, counted per partition from 0.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from struct import Struct
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

_NUMBER = Struct(">q")
_PATIENCE_S = 150.0
_ASK_S = 10.0
_POLL_S = 0.1
_POLL_EVERY = 500
_QUEUE_BYTES = 64 << 20
_QUEUE_RECORDS = 100_000
_READ_AT_ONCE = 10_000
_UNDER_WAY = 20_000


class LedgerBroken(AssertionError):
    """A record is missing, duplicated, out of order or not at its acknowledged offset; the message has the case."""


class Ledger:
    """An idempotent producer (acks=all) of numbered records and the account of its acknowledgements."""

    def __init__(
        self, kafka: str, topic: str, *, partitions: int = 1, value_bytes: int = 100, **settings: object
    ) -> None:
        """Make the producer; nothing is sent yet.

        Args:
            kafka: HOST:PORT of the Kafka listener.
            topic: where the records go; must have the partitions, or be created with them by the first record.
            partitions: they are filled in turn.
            value_bytes: length of every value, at least 8.
            settings: further settings of librdkafka, underscores for dots.
        """
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partitions)]
        """Per partition: number of a record -> offset it was acknowledged with."""
        self.unplaced: list[set[int]] = [set() for _ in range(partitions)]
        """Per partition: numbers of records that were acknowledged without an offset.

        A batch was answered with an error and the next one taken: librdkafka knows by that that the first is there too.
        """
        self.refused: dict[str, int] = {}
        """Errors of delivery reports, by name, with how many records had them."""
        self.acknowledged_count = 0
        self.sent = [0] * partitions
        self._filling = bytes(value_bytes - _NUMBER.size)
        # A record counts with its key and value. Half a queue is room enough, and keeps the producer busy.
        self._room = min(_QUEUE_BYTES // (value_bytes + _NUMBER.size), _QUEUE_RECORDS) // 2
        self._turn = 0  # the partition of the next record
        given: dict[str, Any] = {name.replace("_", "."): value for name, value in settings.items()}
        if "message.timeout.ms" in given:
            # The time of some records of a batch may end before that of the others. It ends for good then:
            # librdkafka 2.16 cannot send the rest as the batch that it was ("Unable to reconstruct MessageSet").
            given["batch.num.messages"] = 1
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "queue.buffering.max.kbytes": _QUEUE_BYTES >> 10,
                "queue.buffering.max.messages": _QUEUE_RECORDS,
                "message.timeout.ms": 300_000,
                "log_level": 2,
                **given,
            }
        )

    def send(self, count: int) -> None:
        """Send `count` records; collect delivery reports, and wait while the producer's queue is full.

        Raises LedgerBroken when the queue stays full for `_PATIENCE_S`.
        """
        producer, topic, filling, report = self._producer, self.topic, self._filling, self._report
        for place in range(count):
            if place % _POLL_EVERY == 0:
                producer.poll(0)
            partition = self._turn
            number = self.sent[partition]
            # The number is the key too: a report is then identified without a copy of its value.
            key = _NUMBER.pack(number)
            try:
                producer.produce(topic, key + filling, key, partition, report)
            except BufferError:
                # Woken for every record that leaves, there would be little time to send any.
                self._wait_until(lambda: len(producer) < self._room, "room in its queue")
                producer.produce(topic, key + filling, key, partition, report)
            self.sent[partition] = number + 1
            self._turn = (partition + 1) % self.partitions

    @contextlib.contextmanager
    def writing(self, at_once: int = 60) -> Iterator[None]:
        """A thread sends so many records every 5 ms, and takes their reports, until the body has ended.

        Few wait where none is taken.
        """
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.005):
                self._producer.poll(0)
                if len(self._producer) < _UNDER_WAY:
                    self.send(at_once)

        thread = threading.Thread(target=write, name="ledger")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _report(self, error: object, message: Message) -> None:
        if error is not None:
            name = getattr(error, "name", lambda: str(error))()
            self.refused[name] = self.refused.get(name, 0) + 1
            return
        key, partition, offset = message.key(), message.partition(), message.offset()
        assert isinstance(key, bytes)
        assert partition is not None
        [number] = _NUMBER.unpack(key)
        if offset is None:
            self.unplaced[partition].add(number)
        else:
            self.acknowledged[partition][number] = offset
        self.acknowledged_count += 1

    def told(self, logs: Sequence[Sequence[tuple[int, int]]]) -> list[dict[int, int]]:
        """`acknowledged`, with offsets of the unplaced from the logs (offsets and numbers); -1: not there."""
        return [
            acknowledged | dict.fromkeys(unplaced, -1) | {number: at for at, number in log if number in unplaced}
            for acknowledged, unplaced, log in zip(self.acknowledged, self.unplaced, logs, strict=True)
        ]

    def wait_for(self, count: int) -> None:
        """Take delivery reports until `count` records in all are acknowledged. LedgerBroken after `_PATIENCE_S`."""
        self._wait_until(lambda: self.acknowledged_count >= count, f"{count} acknowledgements")

    def settle(self) -> None:
        """Take delivery reports until every record has one. Raises LedgerBroken after `_PATIENCE_S`."""
        self._wait_until(lambda: len(self._producer) == 0, "every delivery report")

    def _wait_until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                raise LedgerBroken(f"the producer waited {_PATIENCE_S:g} s for {what}: {self}")
            self._producer.poll(0.01)

    def check(self, kafka: str) -> None:
        """Read everything and compare.

        Raises:
            LedgerBroken: an acknowledged record is not there exactly once at its offset, a record is there twice, or
                the records of a partition are not in the order in which they were sent.
        """
        logs = numbers(kafka, self.topic, self.partitions)
        told = self.told([list(enumerate(log)) for log in logs])
        for partition, (found, acknowledged) in enumerate(zip(logs, told, strict=True)):
            compare(f"{self.topic}-{partition}", found, acknowledged, self.sent[partition])

    def close(self) -> None:
        """Give up what has no delivery report yet, and end the producer."""
        self._producer.purge()
        self._producer.flush(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __str__(self) -> str:
        return f"sent {self.sent}, acknowledged {self.acknowledged_count}, refused {self.refused}"


def compare(where: str, found: list[int], acknowledged: Mapping[int, int], sent: int) -> None:
    """Hold one partition's log against the account of it.

    Args:
        where: the partition, for messages.
        found: numbers of the records in the log; offsets are dense from 0, so the place is the offset.
        acknowledged: number of a record -> offset it was acknowledged with.
        sent: how many were sent; those not acknowledged may be there or not.

    Raises:
        LedgerBroken: see `Ledger.check`.
    """
    for offset, (earlier, later) in enumerate(pairwise(found)):
        if later <= earlier:
            raise LedgerBroken(f"{where}: record {later} follows {earlier} at offset {offset + 1}")
    if found and found[-1] >= sent:
        raise LedgerBroken(f"{where}: record {found[-1]} was never sent")
    for number, offset in acknowledged.items():
        there = found[offset] if offset < len(found) else None
        if there != number:
            elsewhere = f"at offset {found.index(number)}" if number in found else "nowhere"
            raise LedgerBroken(
                f"{where}: record {number} was acknowledged with offset {offset}, where "
                f"{'the log has ended' if there is None else f'record {there} is'}; it is {elsewhere}"
            )


def _ends(consumer: Consumer, places: list[TopicPartition]) -> list[int]:
    """Where partitions end.

    Right after a start one broker may not know of another yet, or not lead: librdkafka then gives up at once.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            consumer.list_topics(places[0].topic, timeout=_ASK_S)  # it does not refresh by itself
            return [consumer.get_watermark_offsets(place, timeout=_ASK_S)[1] for place in places]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_S)


def numbers(kafka: str, topic: str, partitions: int) -> list[list[int]]:
    """Return the numbers of the records in every partition, in the order of offsets.

    Raises:
        LedgerBroken: offsets are not dense from 0, or a record cannot be read within `_PATIENCE_S`.
        KafkaException: the consumer got an error.
    """
    logs = placed(kafka, topic, partitions)
    for partition, log in enumerate(logs):
        for due, (offset, _) in enumerate(log):
            if offset != due:
                raise LedgerBroken(f"{topic}-{partition}: offset {offset} where {due} was due")
    return [[number for _, number in log] for log in logs]


def placed(kafka: str, topic: str, partitions: int) -> list[list[tuple[int, int]]]:
    """Return offset and number of each record in every partition, in the order of offsets.

    Raises:
        LedgerBroken: a record cannot be read within `_PATIENCE_S`.
        KafkaException: the consumer got an error.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "ledger",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "queued.max.messages.kbytes": 65_536,
            "log_level": 2,
        }
    )
    try:
        places = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
        ends = _ends(consumer, places)
        consumer.assign(places)
        found: list[list[tuple[int, int]]] = [[] for _ in places]
        behind = [0 for _ in places]
        deadline = time.monotonic() + _PATIENCE_S
        while missing := [place for place, end in enumerate(ends) if behind[place] < end]:
            if time.monotonic() > deadline:
                told = ", ".join(f"{place}: {behind[place]} of {ends[place]}" for place in missing)
                raise LedgerBroken(f"{topic} could not be read to the end in {_PATIENCE_S:g} s: partition {told}")
            for message in consumer.consume(_READ_AT_ONCE, timeout=0.1):
                if message.error() is not None:
                    raise KafkaException(message.error())
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                found[partition].append((offset, _NUMBER.unpack_from(value)[0]))
                behind[partition] = offset + 1
        return found
    finally:
        consumer.close()
