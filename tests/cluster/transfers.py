"""Numbers that transactions move from one topic to another. `committed` has what readers must find of them.

Each transaction consumes numbers, appends them to partitions of the target, writes some keys of a compacted topic or
deletes them, and commits the offsets.
"""

import contextlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.cluster.committed import Kept, Moved, Outcomes, Record, Writes
from tests.cluster.members import Threads

_SETTINGS: dict[str, Any] = {
    "socket.timeout.ms": 3_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "log_level": 0,
}
_WAIT_S = 20.0
_OFFSETS_S, STUCK_S = 10.0, 12.0
"""Limit of librdkafka for the offsets of a transaction, and seconds after which a call that ignores it is left."""
MOVERS = 3
_AT_ONCE, _PAUSE_S = 20, 0.05
"""Most numbers of a transaction; the feed writes as many, with a pause after them."""
_AHEAD = 300
_ABORTED = 0.1
"""Share of the transactions that are aborted on purpose."""
KEYS = 40
"""Keys of each producer in the compacted topic."""
_WRITES = 4
"""Records of a transaction there."""
_DELETED = 0.2
"""Share of them that delete the key."""


class Topics(NamedTuple):
    """Where numbers are moved."""

    source: str
    target: str
    kept: str
    """The compacted one."""

    @property
    def group(self) -> str:
        """The group of the movers."""
        return self.target

    @property
    def ids(self) -> list[str]:
        """Their transactional IDs."""
        return [self.id_of(f"{number}") for number in range(1, MOVERS + 1)]

    def id_of(self, mover: str) -> str:
        """The transactional ID of one."""
        return f"{self.target}-{mover}"


class Stuck(Exception):
    """A call of the client has not returned in time. Its producer is of no use any more."""


class Movers(Threads):
    """Producers that read, process and write, until they are stopped."""

    def __init__(self, kafka: str, topics: "Topics", partitions: int, seed: int) -> None:
        """They begin at once."""
        self.outcomes = Outcomes()
        self.failed: Counter[str] = Counter()
        self._kafka, self._topics = kafka, topics
        self._partitions, self._seed = partitions, seed
        super().__init__(MOVERS)

    def work(self, name: str) -> None:
        """Move. After an error, begin again with another consumer and another producer of the same ID."""
        chance = random.Random(f"{self._seed} {name}")
        turns = itertools.count()
        while not self.stopping.is_set():
            try:
                self._move(name, turns, chance)
            except KafkaException as error:
                self.failed[error.args[0].name()] += 1
                self.stopping.wait(0.1)
            except Stuck:
                self.failed["stuck"] += 1

    def _move(self, name: str, turns: Iterator[int], chance: random.Random) -> None:
        consumer = Consumer(
            {
                **_SETTINGS,
                "bootstrap.servers": self._kafka,
                "group.id": self._topics.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )
        try:
            settings = {"bootstrap.servers": self._kafka, "transactional.id": self._topics.id_of(name), "linger.ms": 1}
            producer = Producer({**_SETTINGS, **settings, "transaction.timeout.ms": 15_000})
            producer.init_transactions(_WAIT_S)
            consumer.subscribe([self._topics.source])
            while not self.stopping.is_set():
                messages = [each for each in consumer.consume(_AT_ONCE, 0.3) if each.error() is None]
                if messages and not self._transact(consumer, producer, f"{name}:{next(turns)}", messages, chance):
                    _go_back(consumer, messages)
        finally:
            consumer.close()

    def _transact(
        self, consumer: Consumer, producer: Producer, name: str, messages: Sequence[Message], chance: random.Random
    ) -> bool:
        """Return whether it was committed."""
        decided = False
        try:
            producer.begin_transaction()
            for index, message in enumerate(messages):
                value = message.value()
                assert isinstance(value, bytes)
                moved = Moved(int(value), name, len(messages), index)
                partition = chance.randrange(self._partitions)
                producer.produce(self._topics.target, msgspec.json.encode(moved), partition=partition)
            self._keep(producer, name, chance)
            positions = consumer.position(consumer.assignment())
            positions = [each for each in positions if each.offset >= 0]
            send_offsets(producer, positions, consumer.consumer_group_metadata())
            if chance.random() < _ABORTED:
                producer.flush(_WAIT_S)
                producer.abort_transaction(_WAIT_S)
                self.outcomes.note(name, commit=False)
                return False
            decided = True
            _again(producer)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(_WAIT_S)
                self.outcomes.note(name, commit=False)
                decided = False
            if decided:
                self.outcomes.lost()
            raise
        except Stuck:
            # Never committed. The next producer of this ID aborts it, and fences this one.
            self.outcomes.note(name, commit=False)
            raise
        self.outcomes.note(name, commit=True, numbers=len(messages))
        return True

    def _keep(self, producer: Producer, name: str, chance: random.Random) -> None:
        """Write some keys of this producer, or delete them."""
        mover, _, _ = name.partition(":")
        chosen = [chance.randrange(KEYS) for _ in range(_WRITES)]
        writes: Writes = [
            (
                f"{mover}-{key}".encode(),
                None if chance.random() < _DELETED else msgspec.json.encode(Kept(name, index)),
            )
            for index, key in enumerate(chosen)
        ]
        self.outcomes.write(name, writes)
        for key, (encoded, value) in zip(chosen, writes, strict=True):
            producer.produce(self._topics.kept, value, encoded, partition=key % self._partitions)


def send_offsets(producer: Producer, positions: list[TopicPartition], group: Any) -> None:
    """Send the offsets of a transaction. Raises Stuck, KafkaException.

    In librdkafka 2.16 the call waits forever, whatever its timeout, for a coordinator of the group that has left the
    cluster (its issues 5456 and 5511). A call in a thread of its own can be left. Otherwise the consumer would send
    heartbeats but not rejoin, and the rebalance would wait for it for five minutes.
    """
    sent: Future[None] = Future()

    def send() -> None:
        try:
            producer.send_offsets_to_transaction(positions, group, _OFFSETS_S)
        except KafkaException as error:
            sent.set_exception(error)
        else:
            sent.set_result(None)

    threading.Thread(target=send, daemon=True).start()
    try:
        sent.result(STUCK_S)
    except TimeoutError:
        raise Stuck from None


def _go_back(consumer: Consumer, messages: Sequence[Message]) -> None:
    """Consume the records of an aborted transaction again. Partitions that were revoked are read by others."""
    first: dict[int, int] = {}
    for each in messages:
        partition, offset = each.partition(), each.offset()
        assert partition is not None
        assert offset is not None
        first.setdefault(partition, offset)
    topic = messages[0].topic()
    assert topic is not None
    for partition, offset in first.items():
        consumer.seek(TopicPartition(topic, partition, offset))


def _again(producer: Producer) -> None:
    """Commit. An outcome that is not known yet is asked for again."""
    for _ in range(5):
        try:
            producer.commit_transaction(_WAIT_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    producer.commit_transaction(_WAIT_S)


class Feed:
    """Writes numbers to the source, each once."""

    def __init__(self, kafka: str, topic: str) -> None:
        """Nothing is written yet."""
        self.numbers = 0
        """Those that were written: all below."""
        self._topic = topic
        self._refused: list[str] = []
        settings = {"bootstrap.servers": kafka, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer({**_SETTINGS, **settings, "message.timeout.ms": 150_000})

    @contextlib.contextmanager
    def flowing(self, moved: Callable[[], int]) -> Iterator[None]:
        """Write in the background. At the end all are acknowledged; raises AssertionError if one is not.

        `moved`: how many numbers are moved. Few are written ahead of it, so that all are moved soon after the end.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._flow, args=(ended, moved), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        assert self._producer.flush(150) == 0, "numbers are not acknowledged"
        assert not self._refused, self._refused[:5]

    def _flow(self, ended: threading.Event, moved: Callable[[], int]) -> None:
        # Those of a transaction whose outcome is unknown are missing in what is moved.
        ahead = self.numbers - moved()
        while not ended.wait(_PAUSE_S):
            if self.numbers - moved() - ahead < _AHEAD:
                for _ in range(_AT_ONCE):
                    self._producer.produce(self._topic, b"%d" % self.numbers, on_delivery=self._told)
                    self.numbers += 1
            self._producer.poll(0)

    def _told(self, error: object, message: Message) -> None:
        if error is not None:
            self._refused.append(f"{message.value()!r}: {error}")


class Follower(Threads):
    """Reads committed records without a break while things happen, and keeps them all."""

    def __init__(self, kafka: str, topics: Sequence[str], partitions: int) -> None:
        """It begins at once, with the first offsets."""
        self.positions = {(topic, partition): 0 for topic in topics for partition in range(partitions)}
        """Topic and partition -> the offset up to which it has read."""
        self.records: dict[tuple[str, int], dict[int, Record]] = {place: {} for place in self.positions}
        self.told: list[str] = []
        """Errors that no reader may get."""
        self._kafka = kafka
        super().__init__(1)

    def work(self, name: str) -> None:
        """Read."""
        settings = {
            "bootstrap.servers": self._kafka,
            "group.id": uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
        consumer = Consumer({**_SETTINGS, **settings})
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self.positions])
        try:
            while not self.stopping.is_set():
                for message in consumer.consume(500, 0.1):
                    self._read(message)
        finally:
            consumer.close()

    def _read(self, message: Message) -> None:
        error, offset = message.error(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                self.told.append(str(error))
            return
        topic, partition = message.topic(), message.partition()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        place = topic, partition
        if error is not None:
            self.positions[place] = max(offset, self.positions[place])
            return
        if offset < self.positions[place]:
            self.told.append(f"{place}: offset {offset} after {self.positions[place]}")
        self.records[place][offset] = record_of(message)
        self.positions[place] = offset + 1


def record_of(message: Message) -> Record:
    """What a consumer got."""
    offset, key, value = message.offset(), message.key(), message.value()
    assert offset is not None
    assert key is None or isinstance(key, bytes)
    assert value is None or isinstance(value, bytes)
    return Record(offset, key, value)


def committed_records(
    kafka: str, topic: str, starts: Sequence[int], isolation: str = "read_committed"
) -> list[list[Record]]:
    """The records in each partition up to its last stable offset, or with another isolation up to its end.

    `starts`: the first offset for each partition.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[list[Record]] = [[] for _ in starts]
    left = set(range(len(starts)))
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, start in enumerate(starts)])
        while left:
            message = consumer.poll(30)
            assert message is not None, "no end of the partitions"
            partition = message.partition()
            assert partition is not None
            if (error := message.error()) is not None:
                assert error.name() == "_PARTITION_EOF", error
                left.discard(partition)
            else:
                found[partition].append(record_of(message))
        return found
    finally:
        consumer.close()


def committed_values(kafka: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[list[bytes]]:
    """The values of `committed_records` from the start."""
    logs = committed_records(kafka, topic, [0] * partitions, isolation)
    return [[each.value for each in log if each.value is not None] for log in logs]
