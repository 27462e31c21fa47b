"""Retention by bytes of a native topic: which of the newest entries of a plain stream stay."""

from math import ceil
from typing import NamedTuple

from headrace.storage.native.newest_entries import newest
from headrace.storage.redis.script_calls import Scripts

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
