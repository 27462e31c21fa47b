"""How far behind the Redis consumer groups of a native topic's stream are.

Redis knows it of most (XINFO GROUPS), but not of a group that was set somewhere between the entries, or where entries
were deleted. Then it takes counting: from the newest entry back, once for all groups of the stream, and only so far.
"""

from bisect import bisect_right
from typing import Any

import hiredis

from headrace.storage.layout.native import parts_of
from headrace.storage.native.retention import newest
from headrace.storage.redis.replies import native_checked
from headrace.storage.redis.script_calls import Scripts
from headrace.topics.native import GroupLag

MOST_COUNTED = 100_000
MOST_BYTES = 64 << 20
"""Entries that are counted, and their bytes: Redis has to look at each."""


async def groups_of(scripts: Scripts, stream: str) -> list[dict[bytes, Any]]:
    """What Redis tells of the stream's consumer groups. Raises NotAStream, StorageUnavailable."""
    reply = await scripts.shards.at(stream).call("XINFO", "GROUPS", stream, reads=True)
    if isinstance(reply, hiredis.ReplyError) and "no such key" in str(reply):
        return []
    return [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in native_checked(reply)]


async def group_lags(scripts: Scripts, stream: str) -> list[GroupLag]:
    """Every Redis consumer group of the stream with this key, with its lag. Raises NotAStream, StorageUnavailable."""
    groups = await groups_of(scripts, stream)
    unknown = {place: facts[b"last-delivered-id"] for place, facts in enumerate(groups) if facts.get(b"lag") is None}
    counted = await _count(scripts, stream, unknown) if unknown else {}
    return [_lag(facts, counted.get(place)) for place, facts in enumerate(groups)]


def _lag(facts: dict[bytes, Any], counted: int | None) -> GroupLag:
    told = facts.get(b"lag")
    name = facts[b"name"].decode("utf-8", "replace")
    return GroupLag(name, counted if told is None else told, facts[b"pending"], facts[b"consumers"])


async def _count(scripts: Scripts, stream: str, after: dict[int, bytes]) -> dict[int, int]:
    """How many entries lie behind each of these ids; nothing of those that lie too far back."""
    # The last of them is the newest.
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
