"""A topic's log, read straight from Redis by the driver and by every task. Blocking; reads only, never writes.

How a topic lies in Redis is the keyspace room's knowledge; this file only asks for it over a connection.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from headrace.keyspace import entries, partition, registry
from headrace.keyspace.keys import Keyspace, state_of
from headrace.records.errors import BatchError
from headrace.spark import native
from headrace.spark.errors import CorruptLog, DataLoss, StorageUnavailable, TopicReplaced, UnknownTopic
from headrace.spark.plan import Extent, Offsets, Range
from headrace.topics.native import bits_of, is_native

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.topics.model import StoredBatch

_TIMEOUT_S: Final = 30.0
_RETRIES: Final = 5
"""Over about 1.5 s: a restart of Valkey is sat out, a wrong address is told soon."""
_CHUNK_BYTES: Final = 4 << 20
_FIRST_ENTRIES: Final = 8
_MOST_ENTRIES: Final = 4096


@dataclass(frozen=True)
class TopicLog:
    """What a reader must know of a topic."""

    name: str
    id: str
    streams: tuple[str, ...]
    """Each partition's Redis key."""
    bits: int | None = None
    """Native topics: how many bits of an offset hold the sequence of the entry id."""


class LogReader:
    """A connection to the storage. Made anew wherever it is needed: connections are never pickled."""

    def __init__(self, url: str) -> None:
        """Connects with the first question.

        Raises:
            StorageUnavailable: the URL is not one of Redis.
        """
        self._place = _without_password(url)
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES),
            )
        except ValueError as error:
            raise StorageUnavailable(f"{self._place} is not a storage URL: {error}") from error
        # Entries as they come: redis-py would make a dictionary of each, the keyspace room wants neither.
        self._redis.set_response_callback("XRANGE", lambda answer, **_: answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._redis.close()

    def topic(self, name: str, *, expected_id: str | None = None) -> TopicLog:
        """The topic of that name.

        Raises:
            UnknownTopic: there is none.
            TopicReplaced: it has another id than `expected_id`.
            StorageUnavailable: Redis does not answer.
        """
        with self._answering():
            stored: Any = self._redis.hget(Keyspace().topics, name)
        if stored is None:
            raise UnknownTopic(f"no topic {name!r} in the storage at {self._place}")
        topic = registry.topic(stored)
        if expected_id is not None and str(topic.id) != expected_id:
            raise TopicReplaced(
                f"topic {name!r} was deleted and created again: its id is {topic.id}, was {expected_id}"
            )
        return TopicLog(topic.name, str(topic.id), topic.streams, bits_of(topic) if is_native(topic) else None)

    def extents(self, topic: TopicLog) -> dict[int, Extent]:
        """Where each partition's log starts and ends, in one round trip; in some for native topics."""
        if topic.bits is not None:
            with self._answering():
                return {
                    number: native.extent(self._redis, stream, topic.bits)
                    for number, stream in enumerate(topic.streams)
                }
        with self._answering(), self._redis.pipeline(transaction=False) as pipeline:
            for stream in topic.streams:
                pipeline.hmget(state_of(stream), partition.FIELDS)
            answers = pipeline.execute()
        return {number: Extent(*partition.extent(values)) for number, values in enumerate(answers)}

    def records(
        self,
        topic: str,
        stream: str,
        offsets: Range,
        *,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
    ) -> Iterator["pa.RecordBatch"]:
        """The records of a range, in order, as Arrow batches with the columns of Spark's Kafka source.

        Raises:
            DataLoss: some of them are gone, with `fail_on_data_loss`.
            CorruptLog: a stored batch cannot be read.
            StorageUnavailable: Redis does not answer.
        """
        from headrace.records import arrow  # noqa: PLC0415  # pyarrow, where records are read and nowhere else

        name = f"{topic}-{offsets.partition}"
        bits = self._bits(topic)
        if bits is None:
            batches = self._batches(name, stream, offsets, fail_on_data_loss=fail_on_data_loss)
        else:
            batches = self._native_batches(name, stream, bits, offsets, fail_on_data_loss=fail_on_data_loss)
        try:
            yield from arrow.decode(
                batches,
                topic=topic,
                partition=offsets.partition,
                first_offset=offsets.start,
                end_offset=offsets.end,
                include_headers=include_headers,
            )
        except BatchError as error:
            raise CorruptLog(f"{topic}-{offsets.partition} has a batch that cannot be read: {error}") from error

    def limited(self, topic: TopicLog, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Ends of a batch of at most about `rows` records of a native topic, whose offsets do not count records."""
        assert topic.bits is not None
        open_ = [number for number in start if end[number] > start[number]]
        share = max(1, rows // max(1, len(open_)))
        with self._answering():
            found = {
                number: native.end_after(
                    self._redis, topic.streams[number], topic.bits, start[number], end[number], share
                )
                for number in open_
            }
        return {number: found.get(number, start[number]) for number in start}

    def behind_gaps(self, topic: TopicLog, start: Offsets, end: Offsets) -> Offsets:
        """Starts moved up to the first record of a native topic; those of a log topic as they are."""
        if topic.bits is None:
            return start
        with self._answering():
            return {
                number: native.first_from(self._redis, topic.streams[number], topic.bits, offset, end[number])
                if number in end
                else offset
                for number, offset in start.items()
            }

    def _bits(self, name: str) -> int | None:
        with self._answering():
            stored: Any = self._redis.hget(Keyspace().topics, name)
        topic = None if stored is None else registry.topic(stored)
        return bits_of(topic) if topic is not None and is_native(topic) else None

    def _native_batches(
        self, name: str, stream: str, bits: int, offsets: Range, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        with self._answering():
            yield from native.batches(self._redis, stream, bits, offsets)
            start = native.extent(self._redis, stream, bits).start if fail_on_data_loss else 0
        # Gaps are nothing unusual, so what was trimmed meanwhile shows only in the log start.
        if start > offsets.start:
            raise _lost(name, offsets.start, min(start, offsets.end))

    def _batches(
        self, name: str, stream: str, offsets: Range, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Base offset and bytes of the batches that hold the range."""
        position = offsets.start
        for stored in self._stored(stream, offsets):
            if stored.base_offset > position and fail_on_data_loss:
                raise _lost(name, position, min(stored.base_offset, offsets.end))
            if stored.base_offset >= offsets.end:
                return
            yield stored.base_offset, stored.batch
            position = stored.next_offset
        if position < offsets.end and fail_on_data_loss:
            raise _lost(name, position, offsets.end)

    def _stored(self, stream: str, offsets: Range) -> Iterator["StoredBatch"]:
        """The batches from the one that holds the range's start, some of them beyond its end."""
        position, count = offsets.start, _FIRST_ENTRIES
        while position < offsets.end:
            with self._answering():
                answer: Any = self._redis.xrange(stream, entries.range_start(position), "+", count=count)
            batches = entries.decode(answer)
            yield from batches
            if len(batches) < count:
                return
            size = sum(len(stored.batch) for stored in batches)
            span = batches[-1].next_offset - position
            position = batches[-1].next_offset
            # About as many entries as fit the chunk, and no more than the range still has.
            fitting = _CHUNK_BYTES * len(batches) // max(1, size)
            needed = (offsets.end - position) * len(batches) // max(1, span) + 1
            count = max(1, min(fitting, needed, _MOST_ENTRIES))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise StorageUnavailable(f"storage at {self._place}: {' '.join(str(error).split())}") from error


def _lost(name: str, start: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {start} to {end - 1} of {name} are gone: deleted while they were being read; "
        "set failOnDataLoss=false to go on without them"
    )


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
