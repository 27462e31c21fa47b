"""Read a partition's batches, with one request in flight during decoding."""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster, Stale, check, on_topic
from headrace.client.errors import Code, ServerUnavailable
from headrace.client.offsets import Range, TopicPartition
from headrace.protocol.messages import FetchRequest
from headrace.records.batch import BatchHeader, peek
from headrace.records.errors import BatchError
from headrace.records.walk import search

if TYPE_CHECKING:
    from headrace.client.connection import Connection

_FETCH_BYTES: Final = 4 << 20
_WAIT_MS: Final = 500
_EMPTY_ANSWERS: Final = 4
_FETCH: Final = 12
"""The last version that identifies topics by name."""
_HEAD: Final = Struct(">qi")
_ATTEMPTS: Final = 5


class OutOfRange(Exception):
    """The offset is not in the log."""


@dataclass(frozen=True)
class Fetched:
    """A batch of the log."""

    base_offset: int
    next_offset: int
    batch: memoryview
    header: BatchHeader | None
    """None: unreadable header."""


@dataclass
class _Answer:
    batches: list[Fetched]
    aborted: list[tuple[int, int]]
    """Producer id and first offset of aborted transactions."""
    visible: int
    """End offset of the readable records."""


def batches(cluster: Cluster, offsets: Range, *, fetch_bytes: int = _FETCH_BYTES) -> Iterator[Fetched]:
    """Yield the batches of a range up to the end of the log, without control batches.

    With `read_committed`, aborted ones are omitted, too. Raises OutOfRange if `offsets.start` is not in the log,
    ServerUnavailable, LoginRefused, UnknownTopic.
    """
    position, aborting = offsets.start, _Aborted()
    sent: Connection | None = None
    empty = failures = 0
    while position < offsets.end:
        try:
            connection = sent or _send(cluster, offsets.partition, position, fetch_bytes)
            sent = None
            answer = _receive(connection, offsets.partition, position, committed=cluster.options.read_committed)
        except (Stale, ServerUnavailable) as error:
            failures += 1
            if failures > _ATTEMPTS:
                raise ServerUnavailable(str(error)) from error
            sent = None
            cluster.forget()
            cluster.topics([offsets.partition.topic])  # waits until the cluster is available
            continue
        if not answer.batches:
            empty += 1
            if empty > _EMPTY_ANSWERS:
                if answer.visible <= position:
                    raise OutOfRange(f"offset {position} of {offsets.partition}")
                return  # compaction or transactions left a gap
            continue
        empty = failures = 0
        position = max(position + 1, answer.batches[-1].next_offset)
        if position < offsets.end:
            sent = _send_quietly(cluster, offsets.partition, position, fetch_bytes)
        aborting.learn(answer.aborted)
        yield from (one for one in answer.batches if aborting.readable(one))


def first_timestamp(cluster: Cluster, partition: TopicPartition, offset: int) -> int | None:
    """Return the timestamp (ms) of the first record from an offset; None if there is none, or it has none.

    Raises:
        OutOfRange, Stale, ServerUnavailable, LoginRefused, UnknownTopic.
        BatchError: its batch cannot be read.
    """
    connection = _send(cluster, partition, offset, 1)
    answer = _receive(connection, partition, offset, committed=False)
    for one in answer.batches:
        found, _ = search(one.batch, one.base_offset, offset, -(2**63))
        if found is not None:
            return found[1] if found[1] >= 0 else None
    return None


class _Aborted:
    """Producers inside an aborted transaction, as in Kafka's consumers."""

    def __init__(self) -> None:
        self._coming: list[tuple[int, int]] = []
        self._open: set[int] = set()
        self._known: set[tuple[int, int]] = set()

    def learn(self, aborted: list[tuple[int, int]]) -> None:
        for one in aborted:
            if one not in self._known:
                self._known.add(one)
                self._coming.append(one)
        self._coming.sort(key=lambda one: one[1])

    def readable(self, one: Fetched) -> bool:
        """Return whether a batch has visible records. Call it in the order of the log."""
        header = one.header
        if header is None:
            return True  # the decoder reports the error
        while self._coming and self._coming[0][1] < one.next_offset:
            self._open.add(self._coming.pop(0)[0])
        if header.is_control:
            # A marker ends the producer's transaction.
            self._open.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._open)


def _send(cluster: Cluster, partition: TopicPartition, position: int, fetch_bytes: int) -> "Connection":
    connection = cluster.leader(partition)
    connection.send(
        FetchRequest(
            replica_id=-1,
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=fetch_bytes,
            isolation_level=int(cluster.options.read_committed),
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=partition.topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=partition.partition, fetch_offset=position, partition_max_bytes=fetch_bytes
                        )
                    ],
                )
            ],
        ),
        highest=_FETCH,
    )
    return connection


def _send_quietly(cluster: Cluster, partition: TopicPartition, position: int, fetch_bytes: int) -> "Connection | None":
    """Errors are raised when the response is read."""
    try:
        return _send(cluster, partition, position, fetch_bytes)
    except (Stale, ServerUnavailable):
        return None


def _receive(connection: "Connection", partition: TopicPartition, position: int, *, committed: bool) -> _Answer:
    answer = connection.receive()
    needs = on_topic("Read", partition.topic)
    check(answer.error_code, f"reading {partition}", needs)
    [one] = [found for topic in answer.responses for found in topic.partitions]
    if one.error_code == Code.OFFSET_OUT_OF_RANGE:
        raise OutOfRange(f"offset {position} of {partition}")
    check(one.error_code, f"reading {partition}", needs)
    aborted = [(txn.producer_id, txn.first_offset) for txn in one.aborted_transactions or ()] if committed else []
    visible = one.last_stable_offset if committed and one.last_stable_offset >= 0 else one.high_watermark
    found = [batch for batch in split(one.records) if batch.next_offset > position]
    return _Answer(found, aborted, visible)


def split(records: memoryview | None) -> list[Fetched]:
    """Split records into batches; drops an incomplete last one."""
    found: list[Fetched] = []
    view, position = memoryview(records or b""), 0
    while position + _HEAD.size <= len(view):
        base, length = _HEAD.unpack_from(view, position)
        stop = position + _HEAD.size + length
        if length < 0 or stop > len(view):
            break
        batch = view[position:stop]
        try:
            header = peek(batch)
        except BatchError:
            found.append(Fetched(base, base + 1, batch, None))
        else:
            found.append(Fetched(base, base + header.last_offset_delta + 1, batch, header))
        position = stop
    return found
