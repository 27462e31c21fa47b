"""Long lists, a page at a time: searched by name, sorted, cut. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

ROWS = 50


class Slice(msgspec.Struct, frozen=True):
    """A page of a list."""

    rows: tuple[Any, ...]
    number: int
    """Of the page, from 1 on."""
    pages: int
    found: int
    """How many there are that the search finds."""
    search: str
    sort: str


def cut(
    everything: Sequence[Any],
    query: Mapping[str, str],
    *,
    name: Callable[[Any], str],
    sorts: Mapping[str, Callable[[Any], Any]],
    rows: int = ROWS,
) -> Slice:
    """The page that a query asks for.

    Args:
        everything: the whole list.
        query: `q` is what a name has in it, `sort` the order, `page` the number.
        name: of an element.
        sorts: orders by what they are called, the usual one first; all but that put the largest first.
        rows: of a page.
    """
    search = query.get("q", "")[:200]
    found = [each for each in everything if search.lower() in name(each).lower()] if search else list(everything)
    usual = next(iter(sorts))
    sort = query.get("sort", usual)
    if sort not in sorts:
        sort = usual
    found.sort(key=name)
    if sort != usual:
        found.sort(key=sorts[sort], reverse=True)
    pages = max(1, -(-len(found) // rows))
    asked = query.get("page", "1")
    number = min(max(1, int(asked[:9]) if asked.isascii() and asked.isdecimal() else 1), pages)
    return Slice(tuple(found[(number - 1) * rows : number * rows]), number, pages, len(found), search, sort)
