"""Search, sort and cut lists into pages, in time slices because lists may have thousands of items."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from headrace.broker.runtime.scheduler import TimeSlice

ROWS = 50
USUAL = "name"
"""The default order."""


class Slice(msgspec.Struct, frozen=True):
    """A page of a list."""

    rows: tuple[Any, ...]
    number: int
    """Page number, from 1."""
    pages: int
    found: int
    """Number of matching items."""
    search: str
    sort: str


async def cut(
    everything: Sequence[Any],
    query: Mapping[str, str],
    pace: TimeSlice,
    *,
    name: Callable[[Any], str],
    sorts: Mapping[str, Callable[[Any], float]] = MappingProxyType({}),
    shows: Callable[[Any], bool] = lambda _: True,
    rows: int = ROWS,
) -> Slice:
    """Return the requested page.

    In `query`, `q` is part of a name, `sort` the order, `page` the number. Orders begin with the largest number, except
    `name`, the default. The list must not change.
    """
    search = query.get("q", "")[:200]
    part = search.lower()
    by = query.get("sort", USUAL)
    number_of = sorts.get(by)
    sort = by if number_of is not None else USUAL
    found: list[tuple[float, str, int]] = []
    for place, each in enumerate(everything):
        if pace.over:
            await pace.rest()
        called = name(each)
        if shows(each) and part in called.lower():
            found.append((0.0 if number_of is None else -number_of(each), called, place))
    found.sort()
    pages = max(1, -(-len(found) // rows))
    asked = query.get("page", "1")
    number = min(max(1, int(asked[:9]) if asked.isascii() and asked.isdecimal() else 1), pages)
    chosen = found[(number - 1) * rows : number * rows]
    return Slice(tuple(everything[at] for _, _, at in chosen), number, pages, len(found), search, sort)


MOST_POSITIONS = 50
"""Maximum partitions in a text of positions."""
_POSITIONS = re.compile(r"\d{1,9}:\d{1,19}(?:,\d{1,9}:\d{1,19})*", re.ASCII)


def positions_text(positions: Mapping[int, int] | Iterable[tuple[int, int]]) -> str:
    """Return the offsets at which partitions continue as text for a URL, `0:120,1:87`: the first `MOST_POSITIONS`."""
    pairs = positions.items() if isinstance(positions, Mapping) else positions
    return ",".join(f"{partition}:{offset}" for partition, offset in list(pairs)[:MOST_POSITIONS])


def positions_of(text: str) -> dict[int, int]:
    """Return the offsets of a text by partition; empty: it has another form."""
    if len(text) > MOST_POSITIONS * 30 or _POSITIONS.fullmatch(text) is None:
        return {}
    pairs = (pair.split(":") for pair in text.split(",")[:MOST_POSITIONS])
    return {int(partition): int(offset) for partition, offset in pairs}
