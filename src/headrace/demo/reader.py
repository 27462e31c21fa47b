"""`python -m headrace.demo.reader`: one member of the consumer group, in a process that can be killed.

It reports records before it commits them.
"""

import signal
import sys
import time
from collections.abc import Iterable

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from headrace.demo.messages import Assigned, Failed, Read, Told, tell

_BATCH = 1_000
_POLL_S = 0.1
_COMMIT_S = 0.5
_LAST_COMMIT_S = 10.0


class Event(msgspec.Struct):
    """The needed fields of an event."""

    carrier: str
    month: int
    dep_delay: int | None


_events = msgspec.json.Decoder(Event)


class Reader:
    """Consumes until it is stopped, through rebalances."""

    def __init__(self, kafka: str, group: str, topic: str, name: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                # Other members continue during a dead one's session timeout.
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._held: set[int] = set()
        self._read: dict[int, int] = {}
        self._stopping = False
        self._topic = topic
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopping = True

    def run(self) -> None:
        """Read, report, commit, and finally leave the group. Raises KafkaException."""
        committed = time.monotonic()
        while not self._stopping:
            self._consume()
            if time.monotonic() - committed >= _COMMIT_S:
                self._commit()
                committed = time.monotonic()
        # No later member would read uncommitted records again.
        last = time.monotonic() + _LAST_COMMIT_S
        while not self._commit(wait=True) and time.monotonic() < last:
            self._consume()
        self._consumer.close()

    def _consume(self) -> None:
        for part in by_partition(self._consumer.consume(_BATCH, _POLL_S)):
            say(part)
            self._read[part.partition] = part.first + len(part.months)

    def _commit(self, *, wait: bool = False) -> bool:
        """Return whether reported offsets were committed.

        Asynchronous, except at the end: during a rebalance the coordinator responds to nothing else.
        """
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in self._read.items()]
        if not offsets:
            return True
        try:
            if wait:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            else:
                self._consumer.commit(offsets=offsets)
        except KafkaException as error:
            print(f"commit: {error}", file=sys.stderr, flush=True)
            return False
        return True

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._held |= {partition.partition for partition in partitions}
        say(Assigned(sorted(self._held)))

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit(wait=True)
        self._lost(_, partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {partition.partition for partition in partitions}
        self._held -= gone
        for partition in gone:
            self._read.pop(partition, None)
        say(Assigned(sorted(self._held)))


def by_partition(records: Iterable[Message]) -> list[Read]:
    """Group records by partition. Raises KafkaException for permanent errors."""
    parts: dict[int, Read] = {}
    for record in records:
        if (error := record.error()) is not None:
            if error.fatal():
                raise KafkaException(error)
            # Connection errors: the client reconnects.
            print(f"instead of records: {error}", file=sys.stderr, flush=True)
            continue
        partition, offset = record.partition(), record.offset()
        assert partition is not None
        assert offset is not None
        part = parts.get(partition)
        if part is None:
            part = parts[partition] = Read(partition, offset, [], [], [])
        event = _events.decode(record.value() or b"")
        part.carriers.append(event.carrier)
        part.months.append(event.month)
        part.delays.append(event.dep_delay)
    return list(parts.values())


def say(message: Told) -> None:
    """Send a message to the parent."""
    tell(sys.stdout.buffer, message)


def main() -> None:
    """Arguments: HOST:PORT, group, topic, name."""
    reader = Reader(*sys.argv[1:5])
    signal.signal(signal.SIGTERM, lambda _signal, _frame: reader.stop())
    try:
        reader.run()
    except (KafkaException, msgspec.DecodeError) as error:
        say(Failed(str(error)))
        sys.exit(1)


if __name__ == "__main__":
    main()
