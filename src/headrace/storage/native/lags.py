"""Lags of the Redis consumer groups of a native topic, and the entries that retention by bytes keeps.

XINFO GROUPS has no lag for a group that was set between entries, or after deletions. Then entries are counted from the
newest one, up to a limit.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator
from math import ceil
from typing import Any, NamedTuple

import hiredis

from headrace.storage.layout.native import parts_of
from headrace.storage.redis.replies import native_checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.native import GroupLag

MOST_COUNTED = 100_000
MOST_BYTES = 64 << 20
"""Maximum entries and bytes to count: Redis reads each."""


async def groups_of(scripts: Scripts, stream: str) -> list[dict[bytes, Any]]:
    """Return the facts of XINFO GROUPS. Raises NotAStream, StorageUnavailable."""
    reply = await scripts.shards.at(stream).call("XINFO", "GROUPS", stream, reads=True)
    if isinstance(reply, hiredis.ReplyError) and "no such key" in str(reply):
        return []
    return [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in native_checked(reply)]


async def group_lags(scripts: Scripts, stream: str) -> list[GroupLag]:
    """Return the lags of a stream's Redis consumer groups. Raises NotAStream, StorageUnavailable."""
    groups = await groups_of(scripts, stream)
    unknown = {place: facts[b"last-delivered-id"] for place, facts in enumerate(groups) if facts.get(b"lag") is None}
    counted = await _count(scripts, stream, unknown) if unknown else {}
    return [_lag(facts, counted.get(place)) for place, facts in enumerate(groups)]


def _lag(facts: dict[bytes, Any], counted: int | None) -> GroupLag:
    told = facts.get(b"lag")
    name = facts[b"name"].decode("utf-8", "replace")
    return GroupLag(name, counted if told is None else told, facts[b"pending"], facts[b"consumers"])


async def _count(scripts: Scripts, stream: str, after: dict[int, bytes]) -> dict[int, int]:
    """Count the entries after each id, except ids that are too old."""
    wanted = sorted((parts_of(entry_id), place) for place, entry_id in after.items())
    found: dict[int, int] = {}
    counted, size = 0, 0
    async for entries in newest(scripts, stream):
        if wanted[-1][0] >= parts_of(entries[-1][0]):
            ordered = [parts_of(entry_id) for entry_id, _ in reversed(entries)]
            while wanted and wanted[-1][0] >= ordered[0]:
                entry_id, place = wanted.pop()
                found[place] = counted + len(ordered) - bisect_right(ordered, entry_id)
        counted += len(entries)
        size += sum(its_size for _, its_size in entries)
        if not wanted or counted >= MOST_COUNTED or size >= MOST_BYTES:
            break
    else:
        found.update((place, counted) for _, place in wanted)
    return found


_AT_ONCE, _BYTES_AT_ONCE = 1_000, 512 << 10
"""Maximum entries and bytes per call, which blocks Redis."""


async def newest(scripts: Scripts, stream: str) -> AsyncIterator[list[tuple[bytes, int]]]:
    """Yield pieces of ids and sizes, from the newest entry. Raises NotAStream, StorageUnavailable."""
    end, more = "+", 1
    while more:
        ids, more, sizes = native_checked(await scripts.call("native_ids", [stream], end, _AT_ONCE, _BYTES_AT_ONCE))
        if ids:
            yield list(zip(ids, sizes, strict=True))
            end = f"({ids[-1].decode()}"


_MOST_WEIGHED = 10_000
_AFTER_ALL = "18446744073709551615-18446744073709551615"


class Kept(NamedTuple):
    """What retention keeps. By default all entries."""

    first: str = ""
    """Id of the oldest entry."""
    entries: str = ""
    """Maximum number of entries."""


async def kept(scripts: Scripts, stream: str, most: int) -> Kept:
    """Return the newest entries that reach `most` bytes, estimated from 10,000 entries in long streams.

    Raises as `newest`.
    """
    size, weighed, first = 0, 0, _AFTER_ALL
    async for entries in newest(scripts, stream):
        for entry_id, its_size in entries:
            if size >= most:
                return Kept(first=first)
            size, weighed, first = size + its_size, weighed + 1, entry_id.decode()
        if weighed >= _MOST_WEIGHED:
            return Kept(entries=str(ceil(most * weighed / max(size, 1))))
    return Kept()
