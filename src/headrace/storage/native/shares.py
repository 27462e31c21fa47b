"""Share groups of native topics: the Redis consumer group of that name, read and acknowledged by scripts.

Redis stores everything: the owner of an entry, its number of deliveries and the time of its lock (`XPENDING`). Released
entries belong to the consumer `topics.native.RELEASED`. Implements `broker.log_ports.NativeShares`.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import hiredis

from headrace.records import streams
from headrace.records.fallback.streams import Built
from headrace.storage.fence import Fence
from headrace.storage.layout import native
from headrace.storage.layout.keys import state_of
from headrace.storage.redis.protocol import Reply, encode
from headrace.storage.redis.replies import native_checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.model import StoredBatch
from headrace.topics.native import (
    DEAD,
    Acknowledgement,
    Delivered,
    Extent,
    GroupGone,
    GroupLag,
    Limits,
    NativeStream,
    SharePosition,
    ShareRead,
)

_AT_ONCE = 1_000
"""Entries that one script call releases. It blocks Redis."""
_MOST_ENTRIES = 500
"""Maximum entries of one read, because their conversion takes time."""
_MOST_DEAD = 10_000
"""Dead letters that are looked up at once: the largest window."""
_IDLE_MS = 3_600_000
"""Idle time after which members without entries are removed, because their broker crashed. They may come back."""
_BATCH_BYTES = 1 << 20
"""Maximum bytes of a batch of entries, unless a single record has more."""


class _Native(Protocol):
    """What share groups have in common with consumer groups."""

    async def extent(self, stream: NativeStream) -> Extent: ...

    async def position(self, stream: NativeStream, group: str, committed: int | None) -> int | None: ...

    async def group_lags(self, stream: NativeStream) -> list[GroupLag]: ...

    async def forget_group(self, stream: NativeStream, group: str) -> bool: ...


class RedisShares:
    """Share groups of native topics."""

    def __init__(
        self,
        consumers: _Native,
        scripts: Scripts,
        fence: Fence,
        built: Callable[[list[Any], int, int], Awaitable[Built]],
    ) -> None:
        """`built` makes batches of entries, as `streams.build_batches`."""
        self._consumers = consumers
        self._scripts = scripts
        self._fence = fence
        self._built = built

    async def _run(self, name: str, keys: list[str], *arguments: str | bytes | int) -> Reply:
        reply = await self._scripts.call(f"native_share_{name}", keys, self._fence.number, *arguments)
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOGROUP"):
            raise GroupGone(str(reply))
        return native_checked(reply)

    async def acquire(
        self,
        stream: NativeStream,
        group: str,
        member: str,
        limits: Limits,
        count: int,
        limit: int,
        *,
        create_at: int | None,
        first: int = streams.LARGEST_ENTRY,
        expired: bool = True,
    ) -> ShareRead:
        """See `broker.log_ports.NativeShares`."""
        entries, counts, spent, pending, more, wants = await self._run(
            "acquire",
            _keys(stream),
            group,
            member,
            _id_before(create_at, stream.bits),
            limits.lock_ms,
            limits.deliveries,
            min(count, _MOST_ENTRIES),
            limits.window,
            limit,
            first,
            streams.LARGEST_ENTRY,
            streams.MOST_FIELDS,
            int(expired),
            int(limits.dead_letters),
        )
        again = {entry[0]: number for entry, number in zip(entries, counts, strict=False)}
        if again:
            # Released entries may come after ones whose lock has ended, and new ones after a group that was set back.
            entries.sort(key=lambda entry: native.parts_of(entry[0]))
        batches, unfit, gone = await self._built(entries, stream.bits, min(limit, _BATCH_BYTES))
        if unfit or gone:
            # No member will acknowledge them.
            self._scripts.shards.at(stream.key).send([_xack(stream.key, group, (*unfit, *gone))], _ignore)
            left_out = {*unfit, *gone}
            entries = [entry for entry in entries if entry[0] not in left_out]
        return ShareRead(
            batches=[StoredBatch(*batch) for batch in batches],
            acquired=list(_ranges(((entry[0], again.get(entry[0], 1)) for entry in entries), stream.bits)),
            spent=_spent(spent, stream.bits),
            unfit=tuple(entry_id.decode() for entry_id in unfit),
            pending=pending,
            more=bool(more),
            wants=wants,
        )

    async def acknowledge(
        self, stream: NativeStream, group: str, member: str, limits: Limits, given: Sequence[Acknowledgement]
    ) -> list[Delivered] | None:
        """See `broker.log_ports.NativeShares`."""
        bits = stream.bits
        singles: list[str | int] = []
        runs: list[str | int] = []
        for first, last, outcome in given:
            if not 0 <= first <= last:
                return None
            if first == last:
                singles += (outcome.value, native.id_of(first, bits))
            else:
                runs += (outcome.value, native.id_of(first, bits), native.id_of(last, bits), last - first + 1)
        limiting = limits.deliveries, int(limits.dead_letters)
        asked = (group, member, *limiting, len(singles) // 2, *singles, *runs)
        taken, spent = await self._run("acknowledge", _keys(stream), *asked)
        return _spent(spent, bits) if taken else None

    async def release(self, stream: NativeStream, group: str, member: str, limits: Limits) -> list[Delivered]:
        """See `broker.log_ports.NativeShares`."""
        more, spent = 1, []
        while more:
            _, more, part = await self._run(
                "release",
                _keys(stream),
                group,
                member,
                limits.deliveries,
                _AT_ONCE,
                max(_IDLE_MS, limits.lock_ms),
                int(limits.dead_letters),
            )
            spent += part
        return _spent(spent, stream.bits)

    async def dead_letters(self, stream: NativeStream, group: str) -> list[Delivered]:
        """See `broker.log_ports.NativeShares`."""
        shard = self._scripts.shards.at(stream.key)
        reply = await shard.call("XPENDING", stream.key, group, "-", "+", _MOST_DEAD, DEAD)
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOGROUP"):
            return []
        entries = native_checked(reply)
        beyond = [entry[0] for entry in entries if native.parts_of(entry[0])[1] >= 1 << stream.bits]
        if beyond:
            # A program read what has no offset, and so no copy.
            shard.send([_xack(stream.key, group, beyond)], _ignore)
        return _spent([part for entry in entries for part in (entry[0], entry[3])], stream.bits)

    async def bury(self, stream: NativeStream, group: str, letters: Sequence[Delivered]) -> None:
        """See `broker.log_ports.NativeShares`."""
        bits = stream.bits
        ranges: list[str | int] = []
        for first, last, _ in letters:
            ranges += (native.id_of(first, bits), native.id_of(last, bits), last - first + 1)
        await self._run("bury", _keys(stream)[:2], group, *ranges)

    async def begin(self, stream: NativeStream, group: str, create_at: int | None) -> None:
        """See `broker.log_ports.NativeShares`."""
        await self._run("begin", _keys(stream), group, _id_before(create_at, stream.bits), "")

    async def alter(self, stream: NativeStream, group: str, offset: int) -> None:
        """See `broker.log_ports.NativeShares`."""
        await self._run("begin", _keys(stream), group, _id_before(offset, stream.bits), "again")

    async def describe(self, stream: NativeStream, group: str) -> SharePosition | None:
        """See `broker.log_ports.NativeShares`."""
        lags = await self._consumers.group_lags(stream)
        known = next((each for each in lags if each.name == group), None)
        if known is None:
            return None
        start = await self._consumers.position(stream, group, None)
        if start is None:
            # Nothing was delivered, and the group begins before every id.
            start = (await self._consumers.extent(stream)).log_start
        lag = None if known.undelivered is None else known.undelivered + known.pending
        return SharePosition(start, lag, await self._pending(stream, group) if known.pending else ())

    async def _pending(self, stream: NativeStream, group: str) -> tuple[tuple[str, int], ...]:
        reply = await self._scripts.shards.at(stream.key).call("XPENDING", stream.key, group)
        if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOGROUP"):
            return ()
        _, _, _, consumers = native_checked(reply)
        return tuple((name.decode("utf-8", "replace"), int(count)) for name, count in consumers or ())

    async def delete(self, stream: NativeStream, group: str) -> bool:
        """See `broker.log_ports.NativeShares`."""
        return await self._consumers.forget_group(stream, group)


def _keys(stream: NativeStream) -> list[str]:
    return [stream.key, state_of(stream.key), native.groups_of(stream.key)]


def _id_before(offset: int | None, bits: int) -> str:
    return "$" if offset is None else native.id_before(offset, bits)


def _ranges(entries: Iterable[tuple[bytes, int]], bits: int) -> Iterator[Delivered]:
    """Join consecutive offsets with the same number of deliveries.

    Clients allocate memory for each offset of a range, so that a range has no gaps.
    """
    first, last, deliveries = 0, -2, 0
    for entry_id, number in entries:
        ms, _, sequence = entry_id.partition(b"-")
        offset = int(ms) << bits | int(sequence)
        if offset == last + 1 and number == deliveries:
            last = offset
            continue
        if last >= 0:
            yield Delivered(first, last, deliveries)
        first, last, deliveries = offset, offset, number
    if last >= 0:
        yield Delivered(first, last, deliveries)


def _spent(reply: Sequence[Any], bits: int) -> list[Delivered]:
    pairs = sorted(zip(reply[::2], reply[1::2], strict=True), key=lambda pair: native.parts_of(pair[0]))
    # An entry without an offset was never delivered by a share group.
    return list(_ranges((pair for pair in pairs if native.parts_of(pair[0])[1] < 1 << bits), bits))


def _xack(stream: str, group: str, ids: Sequence[bytes]) -> bytes:
    return encode(["XACK", stream, group, *ids])


def _ignore(reply: Reply) -> None:
    """No caller waits for this reply."""
