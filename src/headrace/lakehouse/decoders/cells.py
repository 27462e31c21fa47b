"""Limit the cells of columns per value. A list of objects has one per item and field, present or not."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.kinds import Kind

_CELLS: Final = (10_000, 4)
"""Cells for each value, and additional cells for each of its bytes."""

FEW_CELLS: Final = 8
"""An item that takes any bytes takes at least two, so items of at most this many cells stay within the limit."""

Count = Callable[[Any], int]


def most_cells(size: int) -> int:
    """Return the maximum cells in lists and maps for a value's bytes."""
    return _CELLS[0] + _CELLS[1] * size


def too_many(size: int) -> str:
    """Return the reason for a value over the limit."""
    return f"its lists and maps have more than {most_cells(size):,} cells in columns, the most of {size:,} bytes"


def width(kind: Kind) -> int:
    """Return the cells of an item, without nested lists."""
    return max(1, sum(width(one.kind) for one in kind.fields)) if kind.name == "struct" else 1


def widest(kind: Kind) -> int:
    """Return the maximum cells of an item in its lists and maps."""
    inside = max((widest(each) for each in (*kind.inner, *(one.kind for one in kind.fields))), default=0)
    return max(inside, 0, *(width(each) for each in kind.inner))


def within(kind: Kind, values: list[Any], sizes: Iterable[int], faults: Faults) -> list[Any]:
    """Return the values within the limit for their sizes in bytes."""
    count = counter(kind) if widest(kind) > FEW_CELLS else None
    if count is None:
        return values
    kept = []
    for row, (value, size) in enumerate(zip(values, sizes, strict=True)):
        fits = value is None or count(value) <= most_cells(size)
        if not fits:
            faults.setdefault(row, too_many(size))
        kept.append(value if fits else None)
    return kept


def counter(kind: Kind) -> Count | None:
    """Return a counter of the cells in a value's lists and maps, or None for a kind without any."""
    if kind.name == "struct":
        fields = [(one.source, count) for one in kind.fields if (count := counter(one.kind)) is not None]
        return _of_fields(fields) if fields else None
    if not kind.inner:
        return None
    return _of_items(dict if kind.name == "map" else list, sum(map(width, kind.inner)), counter(kind.inner[-1]))


def _of_fields(fields: list[tuple[str, Count]]) -> Count:
    def count(value: Any) -> int:
        return sum([each(value.get(name)) for name, each in fields]) if type(value) is dict else 0

    return count


def _of_items(wanted: Any, cells: int, each: Count | None) -> Count:
    def count(value: Any) -> int:
        if type(value) is not wanted:
            return 0
        inside = 0 if each is None else sum(map(each, value.values() if wanted is dict else value))
        return len(value) * cells + inside

    return count
