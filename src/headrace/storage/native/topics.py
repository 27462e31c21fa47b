"""Native topics in Redis: plain streams with one entry per record, and Redis consumer groups.

Implements `broker.log_ports.NativeStorage`, and converts between offsets and ids.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from time import monotonic, time
from typing import Any, NamedTuple

import hiredis

from headrace.aio.single_flight import SingleFlight
from headrace.metrics.counters import StoreCounters
from headrace.records import streams
from headrace.records.fallback.streams import Built
from headrace.storage.fence import Fence
from headrace.storage.layout import native
from headrace.storage.layout.keys import producers_of, state_of
from headrace.storage.logs.replicas import NoReplicas, RedisReplicas
from headrace.storage.native.appends import NativeAppends
from headrace.storage.native.lags import Kept, group_lags, groups_of, kept
from headrace.storage.native.shares import RedisShares
from headrace.storage.native.watch import watcher
from headrace.storage.redis.protocol import Reply, encode
from headrace.storage.redis.replies import native_checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.model import StoredBatch
from headrace.topics.native import (
    Entered,
    Extent,
    GroupGone,
    GroupLag,
    GroupPassed,
    NativeRead,
    NativeStream,
)

_AT_ONCE = 10_000
"""Entries that one script call claims or acknowledges. It blocks Redis."""
_MOST_ENTRIES = 500
"""Maximum entries of one read, because their conversion takes time."""
_RECORD = (streams.LARGEST_ENTRY, streams.MOST_FIELDS)
"""Maximum size of an entry that is returned with its fields."""
_ANY = streams.LARGEST_ENTRY
_LARGE = 64 << 10
"""Minimum bytes of an entry that Redis should not copy for each request of the log end."""
_PLAIN = 6
"""Names and values of an entry with key, value and timestamp, which C code reads."""
_PIECE_BYTES = 64 << 10
"""Bytes of other entries that are read in one turn of the event loop. A single entry may have more, ..."""
_ASIDE_BYTES = 256 << 10
"""... and another thread reads it if it has more than this."""
_PLAIN_ASIDE_BYTES = 4 << 20
"""Minimum bytes of an entry of the C code for another thread."""
_BATCH_BYTES = 1 << 20
"""Maximum bytes of a batch of entries, unless a single record has more."""


_Entries = tuple[list[Any], bool, int]
"""Entries as Redis returns them; whether more may exist; see `NativeRead.wants`."""


class _Wanting(NamedTuple):
    begin: str
    """Begin of the read."""
    entry: bytes
    """First entry from there."""
    size: int
    """Its bytes, for which there was no room."""


class RedisNative:
    """Native topics."""

    def __init__(
        self,
        scripts: Scripts,
        url: str,
        fence: Fence,
        *,
        producer_expiry_ms: int,
        now_ms: Callable[[], int] = lambda: int(time() * 1000),
        counted: StoreCounters | None = None,
        copies: RedisReplicas | NoReplicas | None = None,
    ) -> None:
        """Use the scripts. Waits for entries use separate connections to `url`."""
        self.copies = copies or NoReplicas()
        self._scripts = scripts
        self._watcher = watcher(url, scripts.shards)
        self._fence = fence
        self._reading = asyncio.Lock()
        self._producer_expiry_ms = producer_expiry_ms
        self._now_ms = now_ms
        self._extents: SingleFlight[NativeStream, tuple[Extent, native.State]] = SingleFlight(self._ask_extent)
        self._large: dict[str, native.StreamInfo] = {}
        """Last info about streams with a large first or last entry."""
        self._wanting: dict[str, _Wanting] = {}
        """Last result in streams that wait for room."""
        self._lags: SingleFlight[str, list[GroupLag]] = SingleFlight(partial(group_lags, scripts))
        appends = NativeAppends(scripts, fence, counted)
        self.shares = RedisShares(self, scripts, fence, self._built)
        self.append, self.settle, self.refuse_waiting = appends.append, appends.settle, appends.refuse_waiting

    async def close(self) -> None:
        """Close the connections that wait for entries."""
        await self._watcher.close()

    async def _run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        return native_checked(await self._scripts.call(f"native_{name}", keys, *arguments))

    async def _forget_producers(self, stream: str) -> None:
        last_use_ms = self._now_ms() - self._producer_expiry_ms
        keys = [producers_of(stream), state_of(stream)]
        await self._scripts.run("forget_producers", keys, self._fence.number, last_use_ms)

    async def open(self, stream: NativeStream, *, must_exist: bool = False) -> Extent:
        """Fence older servers off a partition, and return its extent.

        Raises:
            TopicError: the key is no stream, or is missing and must exist. Fenced, StorageUnavailable.
        """
        # Its errors explain why a stream cannot be opened.
        await self._run("open", [stream.key, state_of(stream.key)], self._fence.number, "must" if must_exist else "")
        await self._forget_producers(stream.key)
        return await self.extent(stream)

    async def extent(self, stream: NativeStream) -> Extent:
        """Return the log start and end offsets. Raises TopicError."""
        return (await self._extent(stream))[0]

    async def _extent(self, stream: NativeStream) -> tuple[Extent, native.State]:
        """Concurrent callers share this slow request."""
        return await self._extents.get(stream)

    async def _ask_extent(self, stream: NativeStream) -> tuple[Extent, native.State]:
        asked = monotonic()
        keys, known = [stream.key, state_of(stream.key)], self._large.get(stream.key)
        standing = () if known is None else (known.length, known.last_id)
        reply = await self._run("extent", keys, _LARGE, *standing)
        state, large, facts = reply[:4], reply[4], reply[5:]
        if facts:
            length, last, first, added = facts
            known = native.StreamInfo(int(length), last, first, int(added))
        assert known is not None
        if large:
            self._large[stream.key] = known
        else:
            self._large.pop(stream.key, None)
        kept = native.State.read(state)
        start, end = native.extent(known, kept, stream.bits)
        return Extent(start, end, known.added, known.length, asked), kept

    async def read(
        self, stream: NativeStream, offset: int, limit: int, before: int | None = None, *, first: int = _ANY
    ) -> NativeRead:
        """Return about `limit` bytes of entries from `offset` to below `before`, at least one entry.

        If the first entry has more than `first` bytes, nothing is read, and `wants` is its size.
        """
        last = native.last_before_most(stream.bits) if before is None else native.id_before(before, stream.bits)
        reading = self._from(stream, native.id_of(offset, stream.bits), last, limit, first)
        return await self._read(stream, reading, limit)

    async def read_last(self, stream: NativeStream, before: int, limit: int, *, first: int = _ANY) -> NativeRead:
        """Return the last entries below an offset in order. `first` limits the last one."""
        reading = self._range(stream, "XREVRANGE", native.id_before(before, stream.bits), "-", limit, first)
        return await self._read(stream, reading, limit)

    async def _from(self, stream: NativeStream, begin: str, last: str, limit: int, first: int) -> _Entries:
        """Read an entry that has waited for room without the script, alone.

        The script copies each byte twice more and blocks Redis: 170 ms for 60 MB, instead of 10 to 40 ms.
        """
        key, found = stream.key, self._wanting.get(stream.key)
        if found is not None and found.begin == begin and found.size <= first:
            if native.parts_of(found.entry) <= native.parts_of(last.encode()):
                shard = self._scripts.shards.at(key)
                if entries := native_checked(await shard.call("XRANGE", key, found.entry, found.entry, reads=True)):
                    return entries, True, 0
            self._wanting.pop(key, None)
        return await self._range(stream, "XRANGE", begin, last, limit, first)

    async def _range(
        self, stream: NativeStream, command: str, begin: str, end: str, limit: int, first: int
    ) -> _Entries:
        reply = await self._run("read", [stream.key], command, begin, end, _MOST_ENTRIES, limit, first, *_RECORD)
        entries, more, wants, *entry = reply
        if wants and command == "XRANGE":
            self._wanting[stream.key] = _Wanting(begin, entry[0], wants)
        return entries if command == "XRANGE" else entries[::-1], bool(more), wants

    async def read_new(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        count: int,
        limit: int,
        *,
        last_id: str,
        at: int,
        first: int = _ANY,
    ) -> NativeRead:
        """Read about `limit` bytes of new entries of the group, which become pending for `member`.

        After a group was set back, entries that the member already had are left out. `last_id` is the group's last
        delivered id after `enter` or the last read, and `at` the first offset that is new to the member.

        Raises:
            GroupGone: the group does not exist.
            GroupPassed: another member entered later or read entries from `at`. Nothing was read.
        """
        standing = (last_id, native.id_before(at, stream.bits))
        reading = self._read_group(stream, group, member, ">", count, limit, first, *standing)
        return await self._read(stream, reading, limit, group, at=at)

    async def read_pending(
        self, stream: NativeStream, group: str, member: str, offset: int, limit: int, before: int, *, first: int = _ANY
    ) -> NativeRead:
        """Return pending entries of `member` from `offset` to below `before`. Raises GroupGone."""
        after = native.id_before(offset, stream.bits)
        reading = self._read_group(stream, group, member, after, _MOST_ENTRIES, limit, first)
        return await self._read(stream, reading, limit, group, before=before)

    async def _read_group(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        after: str,
        count: int,
        limit: int,
        first: int,
        *standing: str,
    ) -> _Entries:
        most = min(count, _MOST_ENTRIES)
        asked: list[str | int] = [self._fence.number, group, member, after, most, limit, first, *_RECORD, *standing]
        reply = await self._scripts.call("native_read_group", self._keys_of(stream), *asked)
        if isinstance(reply, hiredis.ReplyError):
            word = str(reply).partition(" ")[0]
            if word == "NOGROUP":
                raise GroupGone(str(reply))
            if word == "PASSED":
                raise GroupPassed(str(reply))
        entries, more, wants = native_checked(reply)
        return entries, bool(more), wants

    async def _read(
        self,
        stream: NativeStream,
        reading: Awaitable[_Entries],
        limit: int,
        group: str | None = None,
        *,
        at: int = 0,
        before: int | None = None,
    ) -> NativeRead:
        # Sent after the read, so that the log end is not below the entries.
        (entries, more, wants), (extent, _) = await asyncio.gather(reading, self._extent(stream))
        if before is not None and entries and native.offset_at(entries[-1][0], stream.bits) >= before:
            entries = [entry for entry in entries if native.offset_at(entry[0], stream.bits) < before]
            more = False
        wanted = entries
        if entries and native.offset_at(entries[0][0], stream.bits) < at:
            wanted = [entry for entry in entries if native.offset_at(entry[0], stream.bits) >= at]
        batches, unfit, gone = await self._built(wanted, stream.bits, min(limit, _BATCH_BYTES))
        if gone and group is not None:
            # Trimmed or deleted after delivery: no commit will follow.
            self._scripts.shards.at(stream.key).send([encode(["XACK", stream.key, group, *gone])], _ignore)
        return NativeRead(
            batches=[StoredBatch(*batch) for batch in batches],
            entries=len(entries),
            more=more,
            unfit=tuple(entry_id.decode() for entry_id in unfit),
            first=native.offset_at(entries[0][0], stream.bits) if entries else 0,
            following=native.offset_after(entries[-1][0], stream.bits) if entries else 0,
            extent=extent,
            last_id=entries[-1][0].decode() if entries else "",
            wants=wants,
        )

    async def _built(self, entries: list[Any], bits: int, limit: int) -> Built:
        """Entries that Python reads take several turns of the event loop."""
        if entries and isinstance(entries[0][1], list) and sum(map(len, entries[0][1])) > _PLAIN_ASIDE_BYTES:
            # Only the first can be that large.
            async with self._reading:
                return await asyncio.to_thread(streams.build_batches, entries, bits, limit)
        pieces = list(_pieces(entries))
        if len(pieces) == 1 and pieces[0][1] <= _PIECE_BYTES:
            return streams.build_batches(entries, bits, limit)
        built: Built = ([], [], [])
        for piece, size in pieces:
            # One at a time, also for concurrent reads.
            async with self._reading:
                if size > _ASIDE_BYTES:
                    batches, unfit, gone = await asyncio.to_thread(streams.build_batches, piece, bits, limit)
                else:
                    batches, unfit, gone = streams.build_batches(piece, bits, limit)
                built[0].extend(batches)
                built[1].extend(unfit)
                built[2].extend(gone)
                await asyncio.sleep(0)
        return built

    async def is_gap(self, stream: NativeStream, start: int | str, end: int) -> bool:
        """Return whether no entry exists from `start` (an offset, or the id before) to below `end`."""
        after = start if isinstance(start, str) else native.id_before(start, stream.bits)
        if native.parts_of(after.encode()) >= native.parts_of(native.id_before(end, stream.bits).encode()):
            return True
        found = await self._scripts.shards.at(stream.key).call(
            "XRANGE", stream.key, f"({after}", native.id_before(end, stream.bits), "COUNT", 1, reads=True
        )
        return not native_checked(found)

    async def size(self, stream: NativeStream) -> int:
        """Return the memory of the stream in bytes, estimated by MEMORY USAGE."""
        return int(native_checked(await self._scripts.shards.at(stream.key).call("MEMORY", "USAGE", stream.key)) or 0)

    async def ahead_ms(self, stream: NativeStream) -> int:
        """Return the maximum milliseconds from an offset's time to its record's timestamp."""
        return (await self._extent(stream))[1].ahead_ms

    async def trim(
        self,
        stream: NativeStream,
        *,
        before_ms: int | None = None,
        max_bytes: int | None = None,
        before_offset: int | None = None,
    ) -> Extent:
        """Apply retention by the time of ids, by bytes, or up to an offset. Forget idle producers."""
        oldest, first = ("" if value is None else value for value in (before_ms, before_offset))
        first_id = "" if before_offset is None else native.id_of(before_offset, stream.bits)
        stay = Kept() if max_bytes is None else await kept(self._scripts, stream.key, max_bytes)
        keys = [stream.key, state_of(stream.key)]
        bounds = (oldest, stay.first, first, first_id, stay.entries)
        await asyncio.gather(
            self._forget_producers(stream.key),
            self._run("trim", keys, self._fence.number, stream.bits, *bounds),
        )
        return await self.extent(stream)

    def watch(self, stream: NativeStream, after: int, woken: Callable[[int | None], None]) -> None:
        """Call `woken` once when an entry at or after an offset exists, also from another program.

        Its argument is the log end offset, if known.
        """

        def told(last_id: str | None) -> None:
            woken(None if last_id is None else native.offset_after(last_id.encode(), stream.bits))

        self._watcher.watch(stream.key, native.behind(after, stream.bits), told)

    def unwatch(self, stream: NativeStream) -> None:
        """Stop waiting for entries of a stream."""
        self._large.pop(stream.key, None)
        self._wanting.pop(stream.key, None)
        self._watcher.unwatch(stream.key)

    def _keys_of(self, stream: NativeStream) -> list[str]:
        return [stream.key, state_of(stream.key), native.groups_of(stream.key)]

    async def enter(self, stream: NativeStream, group: str, member: str, create_at: int) -> Entered:
        """Create the Redis group at `create_at` if missing, and claim what earlier owners left pending."""
        more = 1
        while more:
            last, pending, more = await self._run(
                "enter",
                self._keys_of(stream),
                self._fence.number,
                group,
                member,
                native.id_before(create_at, stream.bits),
                _AT_ONCE,
            )
        return Entered(last.decode(), native.offset_after(last, stream.bits), pending)

    async def commit(self, stream: NativeStream, group: str, offset: int, kind: str = "") -> tuple[int, bool]:
        """Acknowledge entries below `offset`, and move the group if the commit requires it.

        `kind` is `back` for a commit below the last one, `reset` for a group without members, or empty. Return the
        number of acknowledged entries, and whether the group's last delivered id was set.
        """
        acknowledged, more, moved = 0, 1, 0
        while more:
            before = native.id_before(offset, stream.bits)
            part, more, moved = await self._run(
                "commit", self._keys_of(stream), self._fence.number, group, before, kind, _AT_ONCE
            )
            acknowledged += part
        return acknowledged, bool(moved)

    async def position(self, stream: NativeStream, group: str, committed: int | None) -> int | None:
        """Return the offset where a group continues, also after a Redis program moved it, or None."""
        before = "" if committed is None else native.id_before(committed, stream.bits)
        what, entry_id = b"more", [b"-"]
        while what == b"more":
            what, *entry_id = await self._run("position", [stream.key], group, before, entry_id[0])
        if what == b"none":
            return None
        if what == b"commit":
            return committed
        found = native.offset_at if what == b"at" else native.offset_after
        return found(entry_id[0], stream.bits)

    async def given_until(self, stream: NativeStream, group: str) -> int | None:
        """Return the offset after all delivered entries of a group, or None."""
        name = group.encode()
        for facts in await groups_of(self._scripts, stream.key):
            if facts[b"name"] == name:
                return native.offset_after(facts[b"last-delivered-id"], stream.bits)
        return None

    async def leave(self, stream: NativeStream, group: str, member: str) -> bool:
        """Remove a member's consumer if nothing is pending for it, and return whether it was removed."""
        return bool(await self._run("leave", self._keys_of(stream), self._fence.number, group, member))

    async def forget_group(self, stream: NativeStream, group: str) -> bool:
        """Destroy the Redis group unless a Redis program uses it, and return whether it was destroyed."""
        return bool(await self._run("forget", self._keys_of(stream), self._fence.number, group))

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]:
        """Return all Redis consumer groups of the stream with their lags."""
        return await self._lags.get(stream.key)


def _pieces(entries: list[Any]) -> Iterator[tuple[list[Any], int]]:
    begin = size = 0
    for place, (_, fields) in enumerate(entries):
        if not isinstance(fields, list) or (len(fields) <= _PLAIN and b"headers" not in fields[::2]):
            continue
        size += sum(map(len, fields))
        if size > _PIECE_BYTES:
            yield entries[begin : place + 1], size
            begin, size = place + 1, 0
    if begin < len(entries) or not entries:
        yield entries[begin:], size


def _ignore(reply: Reply) -> None:
    """No caller waits for this reply."""
