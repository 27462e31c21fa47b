"""Numbers that transactions move from one topic to another, and what readers of committed records must find.

Each transaction consumes numbers, appends them to partitions of the target, and commits the offsets. Its records have
its name and how many there are. So a reader can tell a fractured transaction, an aborted one (Adya's G1a), a number
that was moved twice or never, and an append that was overtaken by the same producer's next one (G0). No transaction
reads what another one of the round wrote, so circular reads (G1c) are impossible.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
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
_AT_ONCE = 20
_ABORTED = 0.1
"""Share of the transactions that are aborted on purpose."""


class Moved(msgspec.Struct, frozen=True):
    """A record of the target."""

    number: int
    transaction: str
    """Name of the producer, a colon, and which of its transactions."""
    of: int
    """Records of the transaction."""
    index: int


class Outcomes:
    """What the movers know of their transactions."""

    def __init__(self) -> None:
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown = 0
        self._lock = threading.Lock()

    def note(self, name: str, *, commit: bool) -> None:
        with self._lock:
            (self.committed if commit else self.aborted).add(name)

    def lost(self) -> None:
        """A mover does not know how its transaction has ended."""
        with self._lock:
            self.unknown += 1


class Stuck(Exception):
    """A call of the client has not returned in time. Its producer is of no use any more."""


class Movers(Threads):
    """Producers that read, process and write, until they are stopped."""

    def __init__(self, kafka: str, source: str, target: str, partitions: int, seed: int, count: int = 3) -> None:
        """They begin at once."""
        self.outcomes = Outcomes()
        self.failed: Counter[str] = Counter()
        self._kafka, self._source, self._target = kafka, source, target
        self._partitions, self._seed = partitions, seed
        super().__init__(count)

    def work(self, name: str) -> None:
        """Move. After an error, begin again with another consumer and another producer of the same ID."""
        chance = random.Random(f"{self._seed} {name}")
        while not self.stopping.is_set():
            try:
                self._move(name, chance)
            except KafkaException as error:
                self.failed[error.args[0].name()] += 1
                self.stopping.wait(0.1)
            except Stuck:
                self.failed["stuck"] += 1

    def _move(self, name: str, chance: random.Random) -> None:
        consumer = Consumer(
            {
                **_SETTINGS,
                "bootstrap.servers": self._kafka,
                "group.id": self._target,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
                "topic.metadata.refresh.interval.ms": 10_000,
            }
        )
        try:
            settings = {"bootstrap.servers": self._kafka, "transactional.id": f"{self._target}-{name}", "linger.ms": 1}
            producer = Producer({**_SETTINGS, **settings, "transaction.timeout.ms": 15_000})
            producer.init_transactions(_WAIT_S)
            consumer.subscribe([self._source])
            life = uuid4().hex[:8]
            for turn in range(1_000_000):
                if self.stopping.is_set():
                    return
                messages = [each for each in consumer.consume(_AT_ONCE, 0.3) if each.error() is None]
                if messages and not self._transact(consumer, producer, f"{life}:{turn}", messages, chance):
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
                producer.produce(self._target, msgspec.json.encode(moved), partition=chance.randrange(self._partitions))
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
        self.outcomes.note(name, commit=True)
        return True


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


def committed_values(kafka: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[list[bytes]]:
    """The values in each partition up to its last stable offset, or with another isolation up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    left = set(range(partitions))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            message = consumer.poll(30)
            assert message is not None, "no end of the partitions"
            partition = message.partition()
            assert partition is not None
            if (error := message.error()) is not None:
                assert error.name() == "_PARTITION_EOF", error
                left.discard(partition)
            else:
                value = message.value()
                assert isinstance(value, bytes)
                found[partition].append(value)
        return found
    finally:
        consumer.close()


def moved(values: Iterable[bytes]) -> list[Moved]:
    """The records of one partition, as they were written."""
    return [msgspec.json.decode(value, type=Moved) for value in values]


def check(logs: Sequence[Sequence[Moved]], numbers: int, outcomes: Outcomes) -> None:
    """Check the committed records of each partition, once all numbers are moved. Raises AssertionError."""
    times = Counter(each.number for log in logs for each in log)
    twice = sorted(number for number, count in times.items() if count > 1)
    assert not twice, f"moved twice: {twice[:10]} of {len(twice)}"
    missing = sorted(set(range(numbers)) - times.keys())
    assert not missing, f"never moved: {missing[:10]} of {len(missing)}"
    seen: dict[str, list[Moved]] = {}
    for log in logs:
        last: dict[str, tuple[int, int]] = {}
        for each in log:
            seen.setdefault(each.transaction, []).append(each)
            life, _, turn = each.transaction.partition(":")
            place = int(turn), each.index
            assert place > last.get(life, (-1, -1)), f"G0: {each} was overtaken"
            last[life] = place
    aborted = outcomes.aborted & seen.keys()
    assert not aborted, f"G1a: aborted transactions are read: {sorted(aborted)[:5]}"
    lost = outcomes.committed - seen.keys()
    assert not lost, f"committed transactions are lost: {sorted(lost)[:5]}"
    fractured = [name for name, some in seen.items() if len(some) != some[0].of]
    assert not fractured, f"fractured transactions: {fractured[:5]}"
