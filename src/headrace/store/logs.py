"""Topics and their logs in Redis: `broker.ports.LogStorage`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from time import time
from typing import TypeVar

from headrace.keyspace import entries, registry
from headrace.keyspace.keys import Keyspace, producers_of, state_of
from headrace.keyspace.scripts import Script, script
from headrace.records.batch import peek
from headrace.store.appends import APPEND, APPEND_ALL_THE_SAME, AppendDone, AppendQueue
from headrace.store.connection import Connection, Reply, encode
from headrace.store.direct import DirectAppends
from headrace.store.journal import Journal
from headrace.store.journaled import JournaledAppends
from headrace.store.native_scripts import NATIVE_SCRIPTS
from headrace.store.replies import checked
from headrace.topics.errors import TopicExists
from headrace.topics.model import Append, PartitionState, StoredBatch, Topic

SCRIPTS = tuple(
    script(name)
    for name in (
        APPEND.name, "drop", "find_timestamp", "forget_producers", "load_group", "mirror_position", "move_topic",
        "open", "put_topic", "register_group", "remove_topic", "save_documents", "save_group", "take_producer_ids",
        "trim",
        *NATIVE_SCRIPTS,
    )
)  # fmt: skip
"""Loaded on every new connection."""

_DROP, _FIND, _FORGET, _OPEN, _PUT_TOPIC, _REMOVE_TOPIC, _TAKE_IDS, _TRIM = (
    script(name)
    for name in (
        "drop",
        "find_timestamp",
        "forget_producers",
        "open",
        "put_topic",
        "remove_topic",
        "take_producer_ids",
        "trim",
    )
)

T = TypeVar("T")

DEFAULT_PRODUCER_EXPIRY_MS = 86_400_000
"""Kafka's `producer.id.expiration.ms`."""
_PARTITIONS_AT_ONCE = 64
_SCAN_BATCHES = 16


def load_commands() -> list[bytes]:
    """SCRIPT LOAD for every script."""
    return [encode(["SCRIPT", "LOAD", loaded.text]) for loaded in (*SCRIPTS, APPEND_ALL_THE_SAME)]


class RedisLogs:
    """Topics and logs. `epoch` is this server's fencing epoch: scripts refuse an older one.

    `alone` says that nobody else's writes can reach this Redis, `journal` is where appends are acknowledged then (see
    `RedisStorage.open`).
    """

    def __init__(
        self,
        connection: Connection,
        keyspace: Keyspace,
        epoch: int,
        *,
        producer_expiry_ms: int = DEFAULT_PRODUCER_EXPIRY_MS,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
        alone: bool = False,
        journal: Journal | None = None,
    ) -> None:
        self._connection = connection
        self._keyspace = keyspace
        self._epoch = epoch
        self._producer_expiry_ms = producer_expiry_ms
        self._now_ms = now_ms
        self._appends: AppendQueue | DirectAppends | JournaledAppends
        if not alone:
            self._appends = AppendQueue(connection, epoch, self._now)
        else:
            self._appends = DirectAppends(connection, epoch, self._now)
            if journal is not None:
                self._appends = JournaledAppends(self._appends, journal, connection, epoch, self._now)

    def _now(self) -> int:
        return self._now_ms()

    async def _run(self, called: Script, keys: list[str], *arguments: str | bytes | int) -> Reply:
        return checked(await self._connection.call("EVALSHA", called.sha, len(keys), *keys, *arguments))

    # Topics

    async def load_topics(self) -> list[Topic]:
        """Every topic, in name order. Deletions that a crash has cut short are finished first."""
        await self._finish_deletions()
        return sorted(await self._topics_in(self._keyspace.topics), key=lambda topic: topic.name)

    async def _topics_in(self, key: str) -> list[Topic]:
        return [registry.topic(text) for text in checked(await self._connection.call("HVALS", key))]

    async def _put_topic(self, what: str, topic: Topic) -> int:
        keys = [self._keyspace.topics, self._keyspace.epoch]
        answer: int = await self._run(_PUT_TOPIC, keys, self._epoch, what, topic.name, registry.encode(topic))
        return answer

    async def _remove_topic(self, what: str, topic: Topic) -> None:
        keys = [self._keyspace.topics, self._keyspace.epoch, self._keyspace.deleted]
        await self._run(_REMOVE_TOPIC, keys, self._epoch, what, str(topic.id), topic.name)

    async def create_topic(self, topic: Topic) -> None:
        """Store a new topic with empty partitions; raises TopicExists."""
        stored = checked(await self._connection.call("HEXISTS", self._keyspace.topics, topic.name))
        if stored:
            raise TopicExists(f"topic {topic.name!r} exists already")
        # A deletion or a creation that was cut short may have left something under these keys.
        await self._finish_deletions()
        await self._drop(topic.streams)
        for start in range(0, topic.partitions, _PARTITIONS_AT_ONCE):
            streams = topic.streams[start : start + _PARTITIONS_AT_ONCE]
            await asyncio.gather(*(self.open_partition(stream) for stream in streams))
        if not await self._put_topic("create", topic):
            raise TopicExists(f"topic {topic.name!r} exists already")

    async def replace_topic(self, topic: Topic) -> None:
        """Store a changed topic under its name."""
        await self._put_topic("replace", topic)

    async def delete_topic(self, topic: Topic) -> None:
        """Remove the topic from the registry, then its records."""
        await self._remove_topic("begin", topic)
        await self._drop(topic.streams)
        await self._remove_topic("end", topic)

    async def _finish_deletions(self) -> None:
        deleted = await self._topics_in(self._keyspace.deleted)
        if not deleted:
            return
        # A topic of the same name may have been created since, on the same keys.
        alive = {stream for topic in await self._topics_in(self._keyspace.topics) for stream in topic.streams}
        for topic in deleted:
            await self._drop([stream for stream in topic.streams if stream not in alive])
            await self._remove_topic("end", topic)

    async def _drop(self, streams: Sequence[str]) -> None:
        # Behind the appends that were given before, on the same connection: none can land in a later log.
        self._appends.flush()
        for start in range(0, len(streams), _PARTITIONS_AT_ONCE):
            await asyncio.gather(*(self._drop_one(stream) for stream in streams[start : start + _PARTITIONS_AT_ONCE]))
        for stream in streams:
            self._appends.forget(stream)

    async def _drop_one(self, stream: str) -> None:
        # In one turn of the loop: what is appended behind it has to find out by the script that the log is gone.
        self._appends.forget(stream)
        await self._run(_DROP, [stream, state_of(stream), producers_of(stream)], self._epoch)

    # Partitions

    async def open_partition(self, stream: str) -> PartitionState:
        """Fence older servers off, create what is missing; where the log starts and ends."""
        opened = await self._behind_appends(partial(self._open, stream))
        self._appends.forget(stream)
        log_start, next_offset, leader_epoch = opened
        return PartitionState(log_start=int(log_start), next_offset=int(next_offset), leader_epoch=int(leader_epoch))

    async def _open(self, stream: str) -> Reply:
        opened, _ = await asyncio.gather(
            self._run(_OPEN, [stream, state_of(stream)], self._epoch),
            # Where no retention is set nobody ever trims.
            self._forget_producers(stream),
        )
        return opened

    async def _behind_appends(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask Redis behind all that was acknowledged, on the same connection: it is part of the log.

        Raises:
            StorageUnavailable: Redis does not take what was acknowledged.
        """
        while True:
            await self._appends.restored()
            self._appends.flush()
            answer = await ask()
            if self._appends.whole():
                return answer
            # Redis has refused some of it just now: what it answered is less than what there is.

    def append(self, stream: str, append: Append, done: AppendDone) -> None:
        """Send an append; see `broker.ports.LogStorage.append`."""
        self._appends.append(stream, append, done)

    async def settle(self) -> None:
        """Return when every append given before is answered and stored; see `broker.ports.LogStorage.settle`."""
        self._appends.flush()
        # Answers come in order, so this one is the last.
        checked(await self._connection.call("PING"))
        await self._appends.restored()

    async def read(self, stream: str, offset: int, count: int, end: int | None = None) -> list[StoredBatch]:
        """At most `count` batches up to offset `end`, the one that holds `offset` first."""
        ask = partial(self._range, stream, offset, count, end)
        lagged = self._appends.lags(stream)
        found = await ask()
        if len(found) == count or (found and found[-1].next_offset == end):
            return found
        if lagged or self._appends.lags(stream):
            # What is missing may have been acknowledged and not stored yet.
            found = await self._behind_appends(ask)
        return found

    async def _range(self, stream: str, offset: int, count: int, end: int | None) -> list[StoredBatch]:
        last = "+" if end is None else entries.range_end(end)
        first = entries.range_start(offset)
        found = await self._connection.call("XRANGE", stream, first, last, "COUNT", count, in_place=True)
        return entries.decode(checked(found))

    async def find_timestamp(self, stream: str, timestamp: int) -> StoredBatch | None:
        """The first batch that has a record with this timestamp (ms) or a later one."""
        found = await self._behind_appends(partial(self._find, stream, timestamp))
        if found is None or peek(found.batch).max_timestamp >= timestamp:
            return found
        # Its time came from a batch that was trimmed, or from its arrival: the one looked for lies behind it.
        async for stored in self._scan(stream, found.next_offset):
            if peek(stored.batch).max_timestamp >= timestamp:
                return stored
        return None

    async def find_max_timestamp(self, stream: str) -> StoredBatch | None:
        """The first batch that holds the log's largest timestamp; None when no batch has one."""
        found, last = await self._behind_appends(partial(self._find_max, stream))
        largest = -1 if found is None else peek(found.batch).max_timestamp
        if found is None or largest == int(checked(last) or -1):
            return found if largest >= 0 else None
        # As above, but here it may also lie before.
        best, largest = None, -1
        async for stored in self._scan(stream, 0):
            newest = peek(stored.batch).max_timestamp
            if newest > largest:
                best, largest = stored, newest
        return best

    async def _find_max(self, stream: str) -> tuple[StoredBatch | None, Reply]:
        return await asyncio.gather(
            self._find(stream, "max"), self._connection.call("HGET", state_of(stream), entries.STATE_MAX_TIMESTAMP)
        )

    async def _find(self, stream: str, wanted: int | str) -> StoredBatch | None:
        entry = await self._run(_FIND, [stream, state_of(stream)], wanted)
        return entries.decode([entry])[0] if entry else None

    async def _scan(self, stream: str, offset: int) -> AsyncIterator[StoredBatch]:
        while found := await self.read(stream, offset, _SCAN_BATCHES):
            for stored in found:
                yield stored
            offset = found[-1].next_offset

    async def trim(self, stream: str, *, before_ms: int | None, max_bytes: int | None) -> int:
        """Retention; the new log start. Producers that were not heard of for long are forgotten too."""
        oldest = "" if before_ms is None else before_ms
        most = "" if max_bytes is None else max_bytes
        _, log_start = await asyncio.gather(
            self._forget_producers(stream),
            self._run(_TRIM, [stream, state_of(stream)], self._epoch, oldest, most, ""),
        )
        return int(log_start)

    async def _forget_producers(self, stream: str) -> None:
        self._appends.forget(stream)
        last_use_ms = self._now_ms() - self._producer_expiry_ms
        await self._run(_FORGET, [producers_of(stream), state_of(stream)], self._epoch, last_use_ms)

    async def delete_records(self, stream: str, before_offset: int) -> int:
        """Move the log start up to `before_offset`; the new log start."""
        trim = partial(self._run, _TRIM, [stream, state_of(stream)], self._epoch, "", "", before_offset)
        return int(await self._behind_appends(trim))

    async def size(self, stream: str) -> int:
        """Bytes of the record batches in the log."""
        sizes = partial(self._connection.call, "HMGET", state_of(stream), "s", "f")
        appended, trimmed = checked(await self._behind_appends(sizes))
        return int(appended or 0) - int(trimmed or 0)

    async def allocate_producer_ids(self, count: int) -> int:
        """The first of `count` producer ids nobody was given before."""
        keys = [self._keyspace.producer_ids, self._keyspace.epoch]
        return int(await self._run(_TAKE_IDS, keys, self._epoch, count))
