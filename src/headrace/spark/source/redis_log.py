"""Read a topic's log from Redis in the driver and in tasks. Blocking and read-only.

Native topics have an entry per record, with gaps between offsets.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from headrace.client.errors import DataLoss, StorageUnavailable, UnknownTopic
from headrace.client.offsets import Extent, Offsets, Range, TopicPartition, limit
from headrace.records import streams
from headrace.records.walk import find_timestamp
from headrace.spark.source.archived_records import ArchivedTopic
from headrace.spark.source.committed_log import CommittedLog
from headrace.spark.source.topic_log import Subscription, TopicLog, Topics, Unreadable, decode, was_replaced
from headrace.storage.layout import entries, native, partition, registry
from headrace.storage.layout import segments as segment_rows
from headrace.storage.layout.keys import Keyspace, clean_of, segment_of, state_of
from headrace.storage.layout.scripts import script
from headrace.storage.redis.clients import ERRORS, blocking, stream_entries
from headrace.storage.redis.url import without_password
from headrace.topics.errors import ArchiveUnavailable
from headrace.topics.leader_epochs import LeaderEpochs
from headrace.topics.native import bits_of, is_native

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.topics.model import StoredBatch, Topic
    from headrace.topics.segments import CleanedLog


_log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 30.0
_RETRIES: Final = 5
"""About 1.5 s, enough for a restart of Valkey and short for a wrong address."""
_CHUNK_BYTES: Final = 1 << 20
"""Bytes of one answer. With 4 MiB, which exceeds the CPU caches, Redis took a third longer."""
_FIRST_ENTRIES: Final = 8
_MOST_ENTRIES: Final = 4096
_NO_END: Final = 1 << 62
_EXTENT: Final = script("extent")
_WANTS_LOGIN: Final = "already authenticated"
"""Redis's answer to HELLO without a password, which redis-py does not raise as AuthenticationError."""
_LOGIN: Final = (
    "; reading straight from Redis needs the password of Redis, in addition to any login at the server: set option "
    "'redisPasswordFile' (the archive: --redis-password-file), or leave option 'redis' out to read through the Kafka "
    "protocol"
)


def connect(url: str) -> redis.Redis:
    """Return a lazy connection to the storage. Raise StorageUnavailable for an invalid URL."""
    try:
        return blocking(
            url,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), _RETRIES),
        )
    except ValueError as error:
        raise StorageUnavailable(f"{without_password(url)} is not a storage URL: {error}") from error
    except ERRORS as error:
        raise StorageUnavailable(f"{without_password(url)} does not answer: {error}") from error


class LogReader:
    """A connection to the storage, which each process opens."""

    def __init__(self, url: str, *, committed: bool = False) -> None:
        """Prepare as `connect`. `committed`: leave out aborted records, and end at the last stable offset."""
        self._committed = committed
        self._place = without_password(url)
        self._redis = connect(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection."""
        self._redis.close()

    def cluster_id(self) -> str:
        """Return the server's cluster ID, empty if no server has used the storage. Raise StorageUnavailable."""
        with self._answering():
            found: Any = self._redis.get(Keyspace().cluster_id)
        return "" if found is None else found.decode("utf-8", "replace")

    def topics(self, wanted: Subscription) -> Topics:
        """Return the topics in one round trip. Raise UnknownTopic, StorageUnavailable."""
        names = wanted.named()
        if wanted.pattern is None:
            with self._answering():
                stored: Any = self._redis.hmget(Keyspace().topics, list(names))
            missing = next((name for name, text in zip(names, stored, strict=True) if text is None), None)
            if missing is not None:
                raise UnknownTopic(f"no topic {missing!r} in the storage at {self._place}")
            return self._described([registry.topic(text) for text in stored])
        with self._answering():
            everything: Any = self._redis.hgetall(Keyspace().topics)
        found = (registry.topic(text) for text in everything.values())
        return self._described([topic for topic in found if wanted.wants(topic.name)])

    def _described(self, topics: "Sequence[Topic]") -> dict[str, TopicLog]:
        try:
            with self._answering():
                archives = ArchivedTopic.find(self._redis, topics)
        except ArchiveUnavailable as error:
            raise StorageUnavailable(str(error)) from None
        return {
            topic.name: TopicLog(
                topic.name,
                str(topic.id),
                tuple(range(len(topic.streams))),
                topic.streams,
                archives.get(topic.name),
                bits_of(topic) if is_native(topic) else None,
            )
            for topic in topics
        }

    def extents(self, topics: Topics) -> dict[TopicPartition, Extent]:
        """Return the logs' bounds in one round trip, or several for native topics and for transactions."""
        found: dict[TopicPartition, Extent] = {}
        logs = [topic for topic in topics.values() if topic.bits is None]
        bounds = iter(self._bounds([stream for topic in logs for stream in topic.streams]))
        for topic in logs:
            for number in topic.partitions:
                start, end = next(bounds)
                if topic.archive is not None:
                    start = topic.archive.start(number, start)
                found[TopicPartition(topic.name, number)] = Extent(start, end)
        for topic in topics.values():
            if topic.bits is not None:
                with self._answering():
                    found |= {
                        TopicPartition(topic.name, number): native_extent(self._redis, stream, topic.bits)
                        for number, stream in enumerate(topic.streams)
                    }
        return found

    def _bounds(self, streams: Sequence[str]) -> list[tuple[int, int]]:
        with self._answering():
            if self._committed:
                return [(log.log_start, log.end) for log in CommittedLog.look(self._redis, streams)]
            with self._redis.pipeline(transaction=False) as pipeline:
                asked: Any = pipeline  # a cluster's has no `eval`
                for stream in streams:
                    asked.execute_command("EVAL", _EXTENT.text, 3, *_keys(stream))
                return [partition.extent(answer)[:2] for answer in pipeline.execute()]

    def offsets_at(self, topics: Topics, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return offsets; see `Log`."""
        return {one: self._offset_at(topics[one.topic], one.partition, time) for one, time in times.items()}

    def _offset_at(self, topic: TopicLog, number: int, timestamp: int) -> int | None:
        stream = topic.stream(number)
        if topic.bits is not None:
            with self._answering():
                extent = native_extent(self._redis, stream, topic.bits)
            return native_offset_at_time(timestamp, topic.bits, extent)
        if topic.archive is not None:
            old = topic.archive.first_at(number, timestamp, self._local_start(stream))
            if old is not None:
                return old
        with self._answering():
            answer: Any = self._redis.eval(script("find_timestamp").text, 3, *_keys(stream), timestamp)
        entry, _ = answer
        if not entry:
            return None
        # The script finds a batch by its highest time so far, so the record is in it or after it.
        [first] = entries.decode([entry])
        for stored, _, _ in self._stored(stream, Range(TopicPartition(topic.name, number), first.base_offset, _NO_END)):
            found = find_timestamp(stored.batch, stored.base_offset, timestamp)
            if found is not None:
                return found[0]
        return None

    def sizes(self, topics: Topics, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return sizes estimated from the first batches."""
        sizes = {}
        for one, offset in start.items():
            topic = topics[one.topic]
            if topic.bits is not None:
                continue
            stream = topic.stream(one.partition)
            _, epochs, cleaned = self._extent(stream)
            if epochs is None:
                continue
            if offset < cleaned.end and cleaned.segments:
                first, last = cleaned.segments[0], cleaned.segments[-1]
                sizes[one] = cleaned.size / (last.end - first.first)
                continue
            with self._answering():
                answer = stream_entries(self._redis, stream, entries.range_start(epochs, offset), "+", _FIRST_ENTRIES)
            found = entries.decode(answer)
            if found:
                span = found[-1].next_offset - found[0].base_offset
                sizes[one] = sum(len(stored.batch) for stored in found) / span
        return sizes

    def records(
        self,
        stream: str,
        offsets: Range,
        *,
        include_headers: bool = False,
        fail_on_data_loss: bool = True,
        unreadable: Unreadable | None = None,
        topic_id: str = "",
    ) -> Iterator["pa.RecordBatch"]:
        """Return records; see `Log`. Raise StorageUnavailable, OptionError."""
        name = str(offsets.partition)
        present = self._named(offsets.partition.topic)
        if topic_id and present is not None and str(present.id) != topic_id:
            # A recreated native topic has the same key as its predecessor.
            if fail_on_data_loss:
                raise was_replaced(present.name, str(present.id), topic_id)
            _log.warning("%s was deleted, and created again, before %s was read: it has no records", name, offsets)
            return
        topic = None if present is None or stream not in present.streams else self._described([present])[present.name]

        def hot(wanted: Range, *, fail: bool = fail_on_data_loss) -> "Iterator[pa.RecordBatch]":
            if topic is None or topic.bits is None:
                batches = self._batches(name, stream, wanted, fail_on_data_loss=fail)
            else:
                batches = self._native_batches(name, stream, topic.bits, wanted, fail_on_data_loss=fail)
            return decode(batches, wanted, include_headers=include_headers, unreadable=unreadable)

        if topic is None or topic.archive is None:
            yield from hot(offsets)
            return
        position, end = offsets.start, offsets.end
        while position < end:
            local = self._local_start(stream)
            if position < local:
                old = replace(offsets, start=position, end=min(local, end))
                yield from topic.archive.records(
                    old, include_headers=include_headers, fail_on_data_loss=fail_on_data_loss
                )
                position = old.end
                continue
            try:
                # The archive has the records that retention deletes during the read.
                for rows in hot(replace(offsets, start=position), fail=True):
                    yield rows
                    position = rows.column("offset")[-1].as_py() + 1
            except DataLoss:
                if self._local_start(stream) > position:
                    continue
                if fail_on_data_loss:
                    raise
                yield from hot(replace(offsets, start=position))
            return

    def cut(self, topics: Topics, ranges: list[Range]) -> list[Range]:
        """Cut ranges at the start of Redis's log, and earlier ones at files of the archive."""
        pieces: list[Range] = []
        for item in ranges:
            topic = topics[item.partition.topic]
            local = 0 if topic.archive is None else self._local_start(topic.stream(item.partition.partition))
            if topic.archive is None or item.start >= local:
                pieces.append(item)
                continue
            pieces += topic.archive.cut(replace(item, end=min(local, item.end)))
            if item.end > local:
                pieces.append(replace(item, start=local))
        return pieces

    def limited(self, topics: Topics, start: Offsets, end: Offsets, rows: int) -> Offsets:
        """Limit a batch. Offsets of native topics do not count records."""
        natives = {one for one in start if topics[one.topic].bits is not None}
        if not natives:
            return limit(start, end, rows)
        open_ = [one for one in start if end[one] > start[one]]
        share = max(1, rows // max(1, len(open_)))
        limited = {one: min(max(start[one], end[one]), start[one] + share) for one in start}
        with self._answering():
            for one in natives.intersection(open_):
                topic = topics[one.topic]
                assert topic.bits is not None
                stream = topic.stream(one.partition)
                limited[one] = native_end_after(self._redis, stream, topic.bits, start[one], end[one], share)
        return limited

    def behind_gaps(self, topics: Topics, start: Offsets, end: Offsets) -> Offsets:
        """Return starts, in native topics at the first record."""
        moved = dict(start)
        with self._answering():
            for one, offset in start.items():
                topic = topics[one.topic]
                if topic.bits is not None and one in end:
                    stream = topic.stream(one.partition)
                    moved[one] = native_first_from(self._redis, stream, topic.bits, offset, end[one])
        return moved

    def _named(self, name: str) -> "Topic | None":
        with self._answering():
            stored: Any = self._redis.hget(Keyspace().topics, name)
        return None if stored is None else registry.topic(stored)

    def _native_batches(
        self, name: str, stream: str, bits: int, offsets: Range, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        with self._answering():
            yield from native_batches(self._redis, stream, bits, offsets)
            start = native_extent(self._redis, stream, bits).start if fail_on_data_loss else 0
        # Gaps are normal, so only the log start offset shows what was trimmed during the read.
        if start > offsets.start:
            raise _lost(name, offsets.start, min(start, offsets.end))

    def _batches(
        self, name: str, stream: str, offsets: Range, *, fail_on_data_loss: bool
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        position, end, cleaned_end, hidden = offsets.start, offsets.end, 0, None
        if self._committed:
            with self._answering():
                [log] = CommittedLog.look(self._redis, [stream])
                hidden = log.hidden(offsets.start, offsets.end)
            if log.end < end:
                if log.log_end >= end and fail_on_data_loss:
                    raise _undecided(name, log.end, end)
                offsets = replace(offsets, end=max(offsets.start, log.end))
        for stored, start, cleaned_end in self._stored(stream, offsets):
            # Gaps are normal where the log was cleaned, but only from the log start offset on.
            dense_from = max(position, min(cleaned_end, stored.base_offset))
            if fail_on_data_loss and stored.base_offset > dense_from:
                raise _lost(name, dense_from, min(stored.base_offset, offsets.end))
            if fail_on_data_loss and stored.base_offset > position and start > position:
                raise _lost(name, position, min(start, offsets.end))
            if stored.base_offset >= offsets.end:
                break
            if hidden is None or stored.batch not in hidden:
                yield stored.base_offset, stored.batch
            position = stored.next_offset
        if max(position, cleaned_end) < end and fail_on_data_loss:
            raise _lost(name, position, end)

    def _extent(self, stream: str) -> "tuple[int, LeaderEpochs | None, CleanedLog]":
        """Return log start offset, leader epochs and cleaned segments."""
        with self._answering():
            answer: Any = self._redis.eval(_EXTENT.text, 3, *_keys(stream))
        start, _, epochs = partition.extent(answer)
        return start, epochs, segment_rows.decode(answer[6:8])

    def _local_start(self, stream: str) -> int:
        return self._extent(stream)[0]

    def _stored(self, stream: str, offsets: Range) -> Iterator["tuple[StoredBatch, int, int]"]:
        """Yield batches, each with the log start offset and the offset before which the log may have gaps."""
        position, count = offsets.start, _FIRST_ENTRIES
        start, epochs, cleaned = self._extent(stream)
        if epochs is None:
            return
        while position < offsets.end:
            batches = self._known(stream, epochs, cleaned, position, count)
            if not batches or batches[0].base_offset > position:
                # The leader may have moved them to a segment, or from one to another.
                start, epochs, present = self._extent(stream)
                if epochs is None:
                    return
                if present != cleaned:
                    cleaned = present
                    continue
            if not batches:
                return
            for stored in batches:
                yield stored, start, cleaned.end
            size = sum(len(stored.batch) for stored in batches)
            span = batches[-1].next_offset - position
            position = batches[-1].next_offset
            # About the entries that fit the chunk or are left in the range.
            fitting = _CHUNK_BYTES * len(batches) // max(1, size)
            needed = (offsets.end - position) * len(batches) // max(1, span) + 1
            count = max(1, min(fitting, needed, _MOST_ENTRIES))

    def _known(
        self, stream: str, epochs: LeaderEpochs, cleaned: "CleanedLog", offset: int, count: int
    ) -> "list[StoredBatch]":
        """Return batches of one segment, or of the stream."""
        with self._answering():
            for segment in cleaned.from_offset(offset):
                key = segment_of(stream, segment.number)
                place = segment_rows.bounds(offset, segment.end)
                if found := entries.decode(stream_entries(self._redis, key, *place, count)):
                    return found
            first = entries.range_start(epochs, max(offset, cleaned.end))
            return entries.decode(stream_entries(self._redis, stream, first, "+", count))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            said = f"storage at {self._place}: {' '.join(str(error).split())}"
            if isinstance(error, redis.AuthenticationError) or _WANTS_LOGIN in said:
                said += _LOGIN
            raise StorageUnavailable(said) from error


def _keys(stream: str) -> tuple[str, str, str]:
    return stream, state_of(stream), clean_of(stream)


def _lost(name: str, start: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {start} to {end - 1} of {name} are gone: deleted while they were being read; "
        "set failOnDataLoss=false to go on without them"
    )


def _undecided(name: str, start: int, end: int) -> DataLoss:
    return DataLoss(
        f"offsets {start} to {end - 1} of {name} are not committed: an open transaction begins there; set "
        "failOnDataLoss=false to go on without them"
    )


_ENTRIES_AT_ONCE: Final = 1_000
_BATCH_BYTES: Final = 4 << 20


def native_extent(redis: Any, stream: str, bits: int) -> Extent:
    """Return a partition's log start and end offset."""
    info = native.StreamInfo()
    if redis.exists(stream):
        facts = redis.xinfo_stream(stream)
        info = native.StreamInfo(
            length=facts["length"],
            last_id=_bytes(facts["last-generated-id"]),
            first_id=_bytes(facts.get("recorded-first-entry-id", b"0-0")),
            added=facts.get("entries-added", facts["length"]),
        )
    state = native.State.read(redis.hmget(state_of(stream), native.STATE_FIELDS))
    return Extent(*native.extent(info, state, bits))


def native_batches(redis: Any, stream: str, bits: int, offsets: Range) -> Iterator[tuple[int, bytes]]:
    """Yield base offset and bytes of batches in a range."""
    for found in _native_entries(redis, stream, bits, offsets.start, offsets.end):
        for base, _, batch in streams.build_batches(found, bits, _BATCH_BYTES)[0]:
            yield base, batch


def native_first_from(redis: Any, stream: str, bits: int, start: int, end: int) -> int:
    """Return the first entry's offset in a range, or `end`, so that a gap is not cut."""
    last = native.id_before(end, bits)
    found = stream_entries(redis, stream, native.id_of(start, bits), last, 1) if end > start else []
    return native.offset_at(found[0][0], bits) if found else end


def native_offset_at_time(timestamp: int, bits: int, log: Extent) -> int | None:
    """Return the first offset at or after `timestamp` (ms), or None. Entry IDs are times."""
    offset = max(timestamp, 0) << bits
    return None if offset >= log.end else max(offset, log.start)


def native_end_after(redis: Any, stream: str, bits: int, start: int, end: int, rows: int) -> int:
    """Return the offset after the `rows`-th entry of a range, or `end` if it has fewer."""
    for found in _native_entries(redis, stream, bits, start, end):
        if len(found) >= rows:
            return min(end, native.offset_after(found[rows - 1][0], bits))
        rows -= len(found)
    return end


def _native_entries(redis: Any, stream: str, bits: int, start: int, end: int) -> Iterator[list[Any]]:
    last = native.id_before(end, bits)
    while start < end:
        found = stream_entries(redis, stream, native.id_of(start, bits), last, _ENTRIES_AT_ONCE)
        if found:
            yield found
        if len(found) < _ENTRIES_AT_ONCE:
            return
        start = native.offset_after(found[-1][0], bits)


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
