"""Retention by bytes of a native topic: which of the newest entries of a plain stream stay."""

from collections.abc import AsyncIterator
from math import ceil
from typing import NamedTuple

from headrace.storage.redis.replies import native_checked
from headrace.storage.redis.script_calls import Scripts

# The newest entries of a plain stream, without what is in them.
_AT_ONCE, _BYTES_AT_ONCE = 1_000, 512 << 10
"""What one call looks at: Redis serves nobody else meanwhile."""


async def newest(scripts: Scripts, stream: str) -> AsyncIterator[list[tuple[bytes, int]]]:
    """The id of each entry of the stream with this key and its bytes, from the newest back, a piece at a time.

    Raises:
        NotAStream, StorageUnavailable.
    """
    end, more = "+", 1
    while more:
        ids, more, sizes = native_checked(await scripts.call("native_ids", [stream], end, _AT_ONCE, _BYTES_AT_ONCE))
        if ids:
            yield list(zip(ids, sizes, strict=True))
            end = f"({ids[-1].decode()}"


_MOST_WEIGHED = 10_000
_AFTER_ALL = "18446744073709551615-18446744073709551615"


class Kept(NamedTuple):
    """What stays; nothing said: everything."""

    first: str = ""
    """The id of the oldest entry."""
    entries: str = ""
    """How many at most."""


async def kept(scripts: Scripts, stream: str, most: int) -> Kept:
    """As many entries as reach `most` bytes, counted from the newest: to the entry in short streams.

    A long one is judged by its newest ten thousand. Raises as `newest`.
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
