"""How many cells of columns one value may become: a list of objects has one for each item and field, sent or not."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.lakehouse.decoders.arrays import Faults
from headrace.lakehouse.decoders.kinds import Kind

_CELLS: Final = (10_000, 4)
"""So many for each value, and so many more for each of its bytes."""

FEW_CELLS: Final = 8
"""An item takes two bytes at least, where it takes any: items of so few cells are within the bound."""

Count = Callable[[Any], int]


def most_cells(size: int) -> int:
    """The cells that a value of so many bytes may have in lists and maps."""
    return _CELLS[0] + _CELLS[1] * size


def too_many(size: int) -> str:
    """The reason of a value that has more."""
    return f"its lists and maps have more than {most_cells(size):,} cells in columns, the most of {size:,} bytes"


def width(kind: Kind) -> int:
    """The cells of one item: those of an object's fields, but for what is in their lists, which has its own."""
    return max(1, sum(width(one.kind) for one in kind.fields)) if kind.name == "struct" else 1


def widest(kind: Kind) -> int:
    """The cells that an item of its lists and maps has at most; 0 without any."""
    inside = max((widest(each) for each in (*kind.inner, *(one.kind for one in kind.fields))), default=0)
    return max(inside, 0, *(width(each) for each in kind.inner))


def within(kind: Kind, values: list[Any], sizes: Iterable[int], faults: Faults) -> list[Any]:
    """The values of so many bytes each, without those whose lists and maps have too many cells."""
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
    """What counts the cells in a value's lists and maps; None for a kind without any."""
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
