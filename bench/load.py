"""The load generator: confluent-kafka in separate processes, limited by records and by time.

A worker prepares, reports that it is ready, begins on request, and answers with one line of JSON. Its times are those
of the monotonic clock, which all processes of a machine share.
"""

import os
import random
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

import msgspec

from bench.payloads import values

LIMIT_S = 60.0
"""How long a worker may take; then it gives up, and what it measures has failed."""
_STAMP = struct.Struct("<qq")  # when the record was due (ns of the monotonic clock), its number
_POOL_BYTES = 8 << 20
_CHUNK_BYTES = 64 << 10
_BACKLOG_BYTES = 64 << 20
_POLL_S = 0.05
_REST_S = 0.2
_AT_ONCE = 10_000


class LoadFailed(Exception):
    """Records were lost, duplicated or refused, or did not arrive in time."""


class Produce(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """As fast as it goes or may, partitions in turns; `settings` are librdkafka's."""

    servers: str
    topic: str
    partitions: int
    records: int
    size: int
    settings: dict[str, str]
    security: dict[str, str] = {}
    """How to connect (`security.protocol` and the like)."""
    bytes_s: float | None = None
    """Of values, at most; None: as fast as it goes."""
    transaction_ms: int | None = None
    """The transactions that all this is in; None: in none."""
    keys: int = 0
    """How many there are, of which each record has one at random; 0: no record has one."""


class Consume(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Every record that the partitions hold, from the beginning."""

    servers: str
    topic: str
    partitions: list[int]
    security: dict[str, str] = {}
    isolation: str = "read_committed"
    records: int | None = None
    """How many are to come; None: one for each offset, of which there are more in logs with transactions."""


class Send(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One record every 1/rate s, each with the time when it was due, whether or not those before could leave."""

    servers: str
    topic: str
    rate: int
    records: int
    size: int
    settings: dict[str, str]


class Receive(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The other end of Send: how long after they were due records arrive, but for the first `warm_up` of them."""

    servers: str
    topic: str
    records: int
    warm_up: int


Task = Produce | Consume | Send | Receive


class Span(msgspec.Struct, frozen=True):
    """When a worker began and ended, in ns of the monotonic clock, and how many records it moved."""

    began: int
    ended: int
    records: int


class Delays(msgspec.Struct, frozen=True):
    """Latencies in ms."""

    p50: float
    p99: float
    longest: float


def seconds(spans: Sequence[Span]) -> float:
    """From the first beginning to the last end."""
    return (max(span.ended for span in spans) - min(span.began for span in spans)) / 1e9


# In the parent


class Worker:
    """A process with one task, ready when this has been made; whatever happens, it is gone at the end of the block."""

    def __init__(self, task: Any) -> None:
        """Start the module that the task's class is of (`python -m bench.load TASK`)."""
        module = type(task).__module__
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            self._read_line()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def start(self) -> None:
        """Start the load."""
        self._tell("go")

    def stop(self) -> None:
        """End a load that has no end of its own."""
        self._tell("stop")

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def result(self, kind: type[Any]) -> Any:
        """What it answered; raises LoadFailed."""
        return msgspec.json.decode(self._read_line(), type=kind)

    def _read_line(self) -> bytes:
        # The worker ends by itself after a time, and with it this wait.
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise LoadFailed(said[-1] if said else f"a worker ended with status {self._process.wait()}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


# In the worker


class _Clock:
    """The time a worker has."""

    def __init__(self) -> None:
        self._end = time.monotonic() + LIMIT_S

    def check(self, what: str) -> None:
        if time.monotonic() > self._end:
            raise LoadFailed(f"{what} after {LIMIT_S:.0f} s")


def _producer(servers: str, settings: dict[str, str], topic: str) -> Any:
    from confluent_kafka import Producer  # noqa: PLC0415  # only workers load the library

    found = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "queue.buffering.max.kbytes": str(2 * _BACKLOG_BYTES >> 10),
            "queue.buffering.max.messages": "2000000",
            "log_level": "3",
            **settings,
        }
    )
    found.list_topics(topic, timeout=60)
    return found


def _consumer(
    servers: str,
    topic: str,
    security: Mapping[str, str] = MappingProxyType({}),
    isolation: str = "read_committed",
) -> Any:
    from confluent_kafka import Consumer  # noqa: PLC0415

    found = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"bench-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            # Its default of a second is how long a partition rests whose queue was full for a moment.
            "fetch.queue.backoff.ms": 1,
            "isolation.level": isolation,
            "log_level": 3,
            **security,
        }
    )
    found.list_topics(topic, timeout=60)
    return found


def _produce(task: Produce, begin: Callable[[], int]) -> Span:
    settings = {**task.settings, **task.security}
    if task.transaction_ms is not None:
        settings["transactional.id"] = f"{task.topic}-{os.getpid()}"
    producer = _producer(task.servers, settings, task.topic)
    per_chunk = max(1, min(_CHUNK_BYTES // task.size, task.records // task.partitions))
    pool = values(task.size, per_chunk * max(1, _POOL_BYTES // (per_chunk * task.size)))
    chunks = [[{"value": value} for value in pool[at : at + per_chunk]] for at in range(0, len(pool), per_chunk)]
    backlog = max(per_chunk, _BACKLOG_BYTES // task.size)
    clock, sent, turn = _Clock(), 0, 0
    places = range(task.partitions)
    before = sum(_log_ends(task.servers, task.topic, places, task.security))
    transactions = None if task.transaction_ms is None else _Transactions(producer, task.transaction_ms)
    chance = random.Random(task.keys)
    began = begin()
    while sent < task.records:
        while len(producer) > backlog:
            producer.poll(0.001)
            clock.check(f"{len(producer)} records were not acknowledged")
        if task.bytes_s is not None:
            _wait_until(began + int(sent * task.size / task.bytes_s * 1e9), producer)
        if transactions is not None:
            transactions.proceed()
        chunk = chunks[turn % len(chunks)][: task.records - sent]
        if task.keys:
            chunk = [{**each, "key": b"key-%010d" % chance.randrange(task.keys)} for each in chunk]
        sent += producer.produce_batch(task.topic, chunk, partition=turn % task.partitions)
        turn += 1
    while producer.flush(1):
        clock.check(f"{len(producer)} records were not acknowledged")
    if transactions is not None:
        transactions.end()
    span = Span(began, time.monotonic_ns(), sent)
    # At least: other workers may write to the same topic. Consuming shows the exact number.
    found = sum(_log_ends(task.servers, task.topic, places, task.security)) - before
    if found < sent:
        raise LoadFailed(f"the log holds {found} of {sent} records")
    return span


class _Transactions:
    """A producer's transactions, one after the other."""

    def __init__(self, producer: Any, each_ms: int) -> None:
        self._producer = producer
        self._each_ns = each_ms * 1_000_000
        self._due: int | None = None
        producer.init_transactions(LIMIT_S)

    def proceed(self) -> None:
        """Begin one, when there is none or it is time for the next."""
        now = time.monotonic_ns()
        if self._due is not None and now < self._due:
            return
        self.end()
        self._producer.begin_transaction()
        self._due = time.monotonic_ns() + self._each_ns

    def end(self) -> None:
        if self._due is not None:
            self._producer.commit_transaction(LIMIT_S)
            self._due = None


def _wait_until(due: int, producer: Any) -> None:
    """Take answers until it is this time, in ns of the monotonic clock."""
    while (left := due - time.monotonic_ns()) > 0:
        producer.poll(0)
        time.sleep(min(left / 1e9, _POLL_S))


def _log_ends(servers: str, topic: str, partitions: Sequence[int], security: Mapping[str, str]) -> list[int]:
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    # Kafka writes the marker of a transaction after it has answered.
    consumer = _consumer(servers, topic, security, "read_uncommitted")
    try:
        places = (TopicPartition(topic, partition) for partition in partitions)
        return [consumer.get_watermark_offsets(place, timeout=60)[1] for place in places]
    finally:
        consumer.close()


def _consume(task: Consume, begin: Callable[[], int]) -> Span:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition  # noqa: PLC0415

    consumer = _consumer(task.servers, task.topic, task.security, task.isolation)
    ends = _log_ends(task.servers, task.topic, task.partitions, task.security)
    clock, received, wanted = _Clock(), 0, sum(ends) if task.records is None else task.records
    began = begin()
    consumer.assign([TopicPartition(task.topic, partition, OFFSET_BEGINNING) for partition in task.partitions])
    while received < wanted:
        found = consumer.consume(min(_AT_ONCE, wanted - received), timeout=_POLL_S)
        clock.check(f"{received} of {wanted} records arrived")
        if found and (error := next((one.error() for one in (found[0], found[-1]) if one.error()), None)):
            raise LoadFailed(str(error))
        received += len(found)
    span = Span(began, time.monotonic_ns(), received)
    # As many as there are, and every partition read to its end: none is missing, none came twice.
    reached = [place.offset for place in consumer.position(consumer.assignment())]
    if task.records is not None:
        # Behind the last record there are markers, which consumers do not show.
        if more := consumer.consume(1, timeout=_REST_S):
            raise LoadFailed(f"more than {wanted} records arrived: {more[0].offset()} in {more[0].partition()}")
    elif sorted(reached) != sorted(ends):
        raise LoadFailed(f"partitions were read up to {reached}, their ends are {ends}")
    consumer.close()
    return span


def _send(task: Send, begin: Callable[[], int]) -> Span:
    producer = _producer(task.servers, task.settings, task.topic)
    filler = bytes(task.size - _STAMP.size)
    interval, clock = 1e9 / task.rate, _Clock()
    now, rest, pack = time.monotonic_ns, time.sleep, _STAMP.pack
    began = begin()
    for number in range(task.records):
        due = began + int(number * interval)
        while (left := due - now()) > 0:
            rest(left / 1e9)
        producer.produce(task.topic, pack(due, number) + filler, partition=0)
        producer.poll(0)
    while producer.flush(1):
        clock.check(f"{len(producer)} records were not acknowledged")
    return Span(began, now(), task.records)


def _receive(task: Receive, begin: Callable[[], int]) -> Delays:
    from confluent_kafka import TopicPartition  # noqa: PLC0415

    consumer = _consumer(task.servers, task.topic)
    consumer.assign([TopicPartition(task.topic, 0, 0)])
    consumer.poll(_POLL_S)
    delays, clock = [], _Clock()
    now, unpack = time.monotonic_ns, _STAMP.unpack_from
    begin()
    for expected in range(task.records):
        while (message := consumer.poll(_POLL_S)) is None:
            clock.check(f"{expected} of {task.records} records arrived")
        arrived = now()
        if message.error():
            raise LoadFailed(str(message.error()))
        due, number = unpack(message.value())
        if number != expected:
            raise LoadFailed(f"record {number} arrived where {expected} was due")
        delays.append(arrived - due)
    consumer.close()
    return summed_up(delays[task.warm_up :])


def summed_up(taken: Sequence[int]) -> Delays:
    """Of times in ns, of which there are two at least."""
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return Delays(p50=cuts[49] / 1e6, p99=cuts[98] / 1e6, longest=max(taken) / 1e6)


def begin() -> int:
    """Say that all is ready, and wait for the word; the time it came."""
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit(1)
    return time.monotonic_ns()


def main() -> None:
    task: Task = msgspec.json.decode(sys.argv[1], type=Task)
    result: Span | Delays
    try:
        match task:
            case Produce():
                result = _produce(task, begin)
            case Consume():
                result = _consume(task, begin)
            case Send():
                result = _send(task, begin)
            case Receive():
                result = _receive(task, begin)
    except LoadFailed as error:
        raise SystemExit(str(error)) from None
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    main()
