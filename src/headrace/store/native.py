"""Native topics in Redis: plain streams, an entry per record, and Redis' own consumer groups.

Implements `broker.native.ports.NativeStorage`. Offsets come in and go out; ids stay here.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from headrace.keyspace import native
from headrace.keyspace.keys import producers_of, state_of
from headrace.keyspace.scripts import Script, script
from headrace.records import streams
from headrace.records.errors import BatchError
from headrace.store.appends import AppendDone
from headrace.store.connection import Reply, encode
from headrace.store.logs import RedisLogs
from headrace.store.native_watch import StreamWatcher
from headrace.store.replies import error_of
from headrace.topics.errors import CorruptBatch, StorageUnavailable, TopicExists
from headrace.topics.model import Append, Appended, StoredBatch, Topic
from headrace.topics.native import (
    Entered,
    Extent,
    GroupGone,
    GroupLag,
    NativeRead,
    NativeStream,
    NotAStream,
    adopted,
    bits_of,
    is_native,
)

_APPEND, _COMMIT, _COUNT, _DROP, _ENTER, _EXTENT, _FORGET, _LEAVE, _OPEN, _POSITION, _TRIM = (
    script(f"native_{name}")
    for name in (
        "append",
        "commit",
        "count",
        "drop",
        "enter",
        "extent",
        "forget",
        "leave",
        "open",
        "position",
        "trim",
    )
)

_AT_ONCE = 10_000
"""Entries that one call of a script claims or acknowledges: Redis serves nobody else meanwhile."""
_MOST_COUNTED = 100_000
_BATCH_BYTES = 1 << 20
"""No batch made of entries is larger, unless a single record is."""


def _error_of(reply: Exception) -> Exception:
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE"):
        return NotAStream("the key of a native topic's stream holds something else")
    return error_of(reply)


def checked(reply: Reply) -> Reply:
    """The reply; raised when it is an error."""
    if isinstance(reply, Exception):
        raise _error_of(reply)
    return reply


class RedisNative(RedisLogs):
    """Native topics, beside the log topics of `RedisLogs`."""

    _url: str = ""
    _watcher: "StreamWatcher | None" = None

    def watch_at(self, url: str) -> None:
        """Say where a connection of its own may wait for entries."""
        self._watcher = StreamWatcher(url, self._connection)

    async def stop_watching(self) -> None:
        """Close that connection."""
        if self._watcher is not None:
            await self._watcher.close()

    async def _run_native(self, called: Script, keys: list[str], *arguments: str | bytes | int) -> Reply:
        return checked(await self._connection.call("EVALSHA", called.sha, len(keys), *keys, *arguments))

    # Topics

    async def create_topic(self, topic: Topic) -> None:
        """Store a new topic; a stream that is there already under a native topic's key stays. Raises TopicExists."""
        if not is_native(topic):
            await super().create_topic(topic)
            return
        if checked(await self._connection.call("HEXISTS", self._keyspace.topics, topic.name)):
            raise TopicExists(f"topic {topic.name!r} exists already")
        await self._finish_deletions()
        for index, stream in enumerate(topic.streams):
            must = index in adopted(topic)
            await self.open_native(NativeStream(stream, bits_of(topic)), must_exist=must)
        if not await self._put_topic("create", topic):
            raise TopicExists(f"topic {topic.name!r} exists already")

    async def delete_topic(self, topic: Topic) -> None:
        """Remove the topic from the registry, then its records; adopted streams stay."""
        if not is_native(topic):
            await super().delete_topic(topic)
            return
        await self._remove_topic("begin", topic)
        await self._drop_native(topic, topic.streams)
        await self._remove_topic("end", topic)

    async def drop_streams(self, topic: Topic) -> None:
        """Remove a topic's streams with what is kept beside them, but for adopted ones; the registry is not touched."""
        if is_native(topic):
            await self._drop_native(topic, topic.streams)
        else:
            await self._drop(topic.streams)

    async def _finish_deletions(self) -> None:
        gone = [topic for topic in await self._topics_in(self._keyspace.deleted) if is_native(topic)]
        if gone:
            alive = {stream for topic in await self._topics_in(self._keyspace.topics) for stream in topic.streams}
            for topic in gone:
                await self._drop_native(topic, [stream for stream in topic.streams if stream not in alive])
                await self._remove_topic("end", topic)
        await super()._finish_deletions()

    async def _drop_native(self, topic: Topic, keys: Sequence[str]) -> None:
        keep = {topic.streams[index] for index in adopted(topic) if index < topic.partitions}
        for key in keys:
            names = [key, state_of(key), producers_of(key), native.groups_of(key)]
            await self._run_native(_DROP, names, self._epoch, "keep" if key in keep else "")

    # Records

    async def open_native(self, stream: NativeStream, *, must_exist: bool = False) -> Extent:
        """Fence older servers off a partition; where it starts and ends.

        Raises:
            TopicError: the key is no stream, or, where it must exist, is not there.
            Fenced, StorageUnavailable.
        """
        await asyncio.gather(
            self._run_native(_OPEN, [stream.key, state_of(stream.key)], self._epoch, "must" if must_exist else ""),
            self._forget_producers(stream.key),
        )
        return await self.native_extent(stream)

    async def native_extent(self, stream: NativeStream) -> Extent:
        """Where the log starts and ends. Raises TopicError when the key is no stream any more."""
        return (await self._extent(stream))[0]

    async def _extent(self, stream: NativeStream) -> tuple[Extent, native.StreamInfo, native.State]:
        reply = await self._run_native(_EXTENT, [stream.key, state_of(stream.key)])
        length, last, first, added, *state = reply
        info = native.StreamInfo(int(length), last, first, int(added))
        kept = native.State.read(state)
        start, end = native.extent(info, kept, stream.bits)
        return Extent(start, end, info.added, info.length), info, kept

    def append_native(self, stream: NativeStream, append: Append, done: AppendDone) -> None:
        """Append the records of a checked batch, one entry each, all or none; `done` as of `append`.

        Raises:
            CorruptBatch: its records cannot be read.
        """
        try:
            arguments, count = streams.xadd_arguments(append.batch)
        except BatchError as error:
            raise CorruptBatch(f"the records of a batch cannot be read: {error}") from None
        producer: tuple[str | int, ...] = ("", "", "")
        if append.producer_id >= 0:
            producer = (append.producer_id, append.producer_epoch, append.base_sequence)
        head = encode(
            [
                "EVALSHA", _APPEND.sha, 3, stream.key, state_of(stream.key), producers_of(stream.key),
                self._epoch, stream.bits, append.max_timestamp, *producer, append.span,
            ]
        )  # fmt: skip
        # The command continues with what was encoded elsewhere: its count of arguments has to say so.
        known, _, rest = head.partition(b"\r\n")
        self._connection.send([b"*%d\r\n" % (int(known[1:]) + count) + rest, arguments], partial(_appended, done))

    async def read_native(
        self, stream: NativeStream, offset: int, count: int, limit: int, before: int | None = None
    ) -> NativeRead:
        """At most `count` entries from `offset` on, below `before`; batches of about `limit` bytes at most."""
        last = "+" if before is None else native.id_before(before, stream.bits)
        reading = self._connection.call("XRANGE", stream.key, native.id_of(offset, stream.bits), last, "COUNT", count)
        return await self._read(stream, reading, limit)

    async def read_new(self, stream: NativeStream, group: str, member: str, count: int, limit: int) -> NativeRead:
        """Entries that nobody in the group was given yet, which from now on are pending for `member`.

        Raises:
            GroupGone: there is no such group.
        """
        return await self._read_group(stream, group, member, ">", count, limit)

    async def read_pending(
        self, stream: NativeStream, group: str, member: str, offset: int, count: int, limit: int, before: int
    ) -> NativeRead:
        """Entries from `offset` on, below `before`, that `member` was given and has not committed. Raises GroupGone."""
        after = native.id_before(offset, stream.bits)
        return await self._read_group(stream, group, member, after, count, limit, before)

    async def _read_group(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        after: str,
        count: int,
        limit: int,
        before: int | None = None,
    ) -> NativeRead:
        reading = self._connection.call(
            "XREADGROUP", "GROUP", group, member, "COUNT", count, "STREAMS", stream.key, after
        )
        return await self._read(stream, reading, limit, group, before)

    async def _read(
        self, stream: NativeStream, reading: Any, limit: int, group: str | None = None, before: int | None = None
    ) -> NativeRead:
        # Sent after the read: the log never ends before what was read.
        reply, (extent, _, _) = await asyncio.gather(reading, self._extent(stream))
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOGROUP"):
            raise GroupGone(str(reply))
        found = checked(reply)
        entries = (found[0][1] if found else []) if group is not None else found
        if before is not None and entries and native.offset_at(entries[-1][0], stream.bits) >= before:
            entries = [entry for entry in entries if native.offset_at(entry[0], stream.bits) < before]
        batches, unfit, gone = streams.build_batches(entries, stream.bits, min(limit, _BATCH_BYTES))
        if gone and group is not None:
            # Trimmed or deleted since they were delivered: nobody will ever commit them.
            self._connection.send([encode(["XACK", stream.key, group, *gone])], _ignore)
        return NativeRead(
            batches=[StoredBatch(*batch) for batch in batches],
            entries=len(entries),
            unfit=tuple(entry_id.decode() for entry_id in unfit),
            first=native.offset_at(entries[0][0], stream.bits) if entries else 0,
            following=native.offset_after(entries[-1][0], stream.bits) if entries else 0,
            extent=extent,
        )

    async def read_last(self, stream: NativeStream, before: int, count: int, limit: int) -> NativeRead:
        """The last `count` entries below an offset, in order."""
        first = native.id_before(before, stream.bits)
        return await self._read(stream, self._last(stream.key, first, count), limit)

    async def _last(self, key: str, first: str, count: int) -> Reply:
        reply = await self._connection.call("XREVRANGE", key, first, "-", "COUNT", count)
        return reply[::-1] if isinstance(reply, list) else reply

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        """Whether no entry lies between.

        Args:
            stream: the partition.
            start: the first offset looked at, or the id behind which to look.
            end: the first offset not looked at.
        """
        after = start if isinstance(start, str) else native.id_before(start, stream.bits)
        if native.parts_of(after.encode()) >= native.parts_of(native.id_before(end, stream.bits).encode()):
            return True
        found = await self._connection.call(
            "XRANGE", stream.key, f"({after}", native.id_before(end, stream.bits), "COUNT", 1
        )
        return not checked(found)

    async def native_size(self, stream: NativeStream) -> int:
        """Bytes that the stream takes in memory, about: Redis weighs a few of its entries (MEMORY USAGE)."""
        return int(checked(await self._connection.call("MEMORY", "USAGE", stream.key)) or 0)

    async def ahead_ms(self, stream: NativeStream) -> int:
        """How many ms a record's timestamp has been ahead of its offset's at most."""
        return (await self._extent(stream))[2].ahead_ms

    async def trim_native(
        self,
        stream: NativeStream,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
    ) -> Extent:
        """Retention by the time of the ids and by bytes, or up to an offset. Forgets producers idle for long."""
        oldest, most, first = ("" if value is None else value for value in (before_ms, max_bytes, before_offset))
        keys = [stream.key, state_of(stream.key)]
        await asyncio.gather(
            self._forget_producers(stream.key),
            self._run_native(_TRIM, keys, self._epoch, stream.bits, oldest, most, first),
        )
        return await self.native_extent(stream)

    def watch(self, stream: NativeStream, after: int, woken: Callable[[int | None], None]) -> None:
        """Call `woken` once when there is an entry at or after the offset `after`, whoever adds it.

        It is told where the log ends then, or None when that has to be asked.
        """
        assert self._watcher is not None, "the storage was not told where to wait"

        def told(last_id: str | None) -> None:
            woken(None if last_id is None else native.offset_after(last_id.encode(), stream.bits))

        self._watcher.watch(stream.key, native.id_before(after, stream.bits), told)

    def unwatch(self, stream: NativeStream) -> None:
        """Nobody waits for entries of this stream any more."""
        if self._watcher is not None:
            self._watcher.unwatch(stream.key)

    # Groups

    def _keys_of(self, stream: NativeStream) -> list[str]:
        return [stream.key, state_of(stream.key), native.groups_of(stream.key)]

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        """A member begins to read: the Redis group is there, and what earlier owners left pending is the member's.

        Args:
            stream: the partition.
            group: the group's name, in Redis too.
            member: its id, which is the consumer's name.
            create_at: offset that a new group begins at; one that exists keeps its position.
        """
        more = 1
        while more:
            last, pending, more = await self._run_native(
                _ENTER,
                self._keys_of(stream),
                self._epoch,
                group,
                member,
                native.id_before(create_at, stream.bits),
                _AT_ONCE,
            )
        return Entered(last.decode(), native.offset_after(last, stream.bits), pending)

    async def commit_native(self, stream: NativeStream, group: str, offset: int, kind: str = "") -> tuple[int, bool]:
        """Acknowledge what members were given below `offset`, and move the group where the commit asks for it.

        Args:
            stream: the partition.
            group: the group.
            offset: the next record to read.
            kind: `back` for a commit below the last one, `reset` where nobody is in the group, else empty.

        Returns:
            Entries acknowledged; whether the group's last delivered id was set.
        """
        acknowledged, more, moved = 0, 1, 0
        while more:
            before = native.id_before(offset, stream.bits)
            part, more, moved = await self._run_native(
                _COMMIT, self._keys_of(stream), self._epoch, group, before, kind, _AT_ONCE
            )
            acknowledged += part
        return acknowledged, bool(moved)

    async def native_position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        """Where a group stands, whoever moved it; None when it has not begun. Creates nothing.

        Args:
            stream: the partition.
            group: the group.
            committed: the last commit's offset, None when there was none.
        """
        before = "" if committed is None else native.id_before(committed, stream.bits)
        what, *entry_id = await self._run_native(_POSITION, [stream.key], group, before)
        if what == b"none":
            return None
        if what == b"commit":
            return committed
        found = native.offset_at if what == b"at" else native.offset_after
        return found(entry_id[0], stream.bits)

    async def leave(self, stream: NativeStream, group: str, member: str) -> bool:
        """Remove a member's consumer where nothing is pending for it; whether it went."""
        return bool(await self._run_native(_LEAVE, self._keys_of(stream), self._epoch, group, member))

    async def forget_group(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program is in it; whether it went."""
        return bool(await self._run_native(_FORGET, self._keys_of(stream), self._epoch, group))

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]:
        """Every Redis consumer group of the stream, with its lag."""
        reply = await self._connection.call("XINFO", "GROUPS", stream.key)
        if isinstance(reply, hiredis.ReplyError) and "no such key" in str(reply):
            return []
        found = []
        for entry in checked(reply):
            facts = dict(zip(entry[::2], entry[1::2], strict=True))
            lag = facts.get(b"lag")
            if lag is None:
                counted = await self._run_native(_COUNT, [stream.key], facts[b"last-delivered-id"], _MOST_COUNTED)
                lag = counted if counted < _MOST_COUNTED else None
            name = facts[b"name"].decode("utf-8", "replace")
            found.append(GroupLag(name, lag, facts[b"pending"], facts[b"consumers"]))
        return found


def _ignore(reply: Reply) -> None:
    """Nobody waits for this answer."""


def _appended(done: AppendDone, reply: Reply) -> None:
    if isinstance(reply, bytes):
        done(Appended(int(reply[1:]), duplicate=True) if reply.startswith(b"D") else Appended(int(reply)))
    else:
        done(_error_of(reply) if isinstance(reply, Exception) else StorageUnavailable(f"Redis answered {reply!r}"))
