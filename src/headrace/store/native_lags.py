"""How far behind the Redis consumer groups of a native topic's stream are.

Redis knows it of most (XINFO GROUPS), but not of a group that was set somewhere between the entries, or where entries
were deleted. Then it takes counting: from the newest entry back, once for all groups of the stream, and only so far.
"""

from bisect import bisect_right
from typing import Any

import hiredis

from headrace.keyspace.native import parts_of
from headrace.store.native_replies import checked
from headrace.store.scripts import Scripts
from headrace.topics.native import GroupLag

MOST_COUNTED = 100_000
MOST_BYTES = 64 << 20
"""Entries that are counted, and their bytes: Redis has to look at each."""
_AT_ONCE, _BYTES_AT_ONCE = 1_000, 512 << 10
"""What one call looks at: Redis serves nobody else meanwhile."""


async def group_lags(scripts: Scripts, stream: str) -> list[GroupLag]:
    """Every Redis consumer group of the stream with this key, with its lag. Raises NotAStream, StorageUnavailable."""
    reply = await scripts.shards.at(stream).call("XINFO", "GROUPS", stream)
    if isinstance(reply, hiredis.ReplyError) and "no such key" in str(reply):
        return []
    groups = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in checked(reply)]
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
    counted, size, end, more = 0, 0, "+", 1
    while more and wanted and counted < MOST_COUNTED and size < MOST_BYTES:
        ids, more = checked(await scripts.call("native_ids", [stream], end, _AT_ONCE, _BYTES_AT_ONCE))
        if not ids:
            break
        if wanted[-1][0] >= parts_of(ids[-1]):
            ordered = [parts_of(each) for each in reversed(ids)]
            while wanted and wanted[-1][0] >= ordered[0]:
                entry_id, place = wanted.pop()
                found[place] = counted + len(ordered) - bisect_right(ordered, entry_id)
        counted += len(ids)
        # Where there is more, and these are fewer, they have as many bytes as they may.
        size += _BYTES_AT_ONCE if len(ids) < _AT_ONCE else 0
        end = f"({ids[-1].decode()}"
    if not more:
        found.update((place, counted) for _, place in wanted)
    return found
