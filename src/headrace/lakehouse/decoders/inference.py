"""Find the kinds of columns that no schema describes, from the table and from the values.

Most values of a batch decide a new column's kind; others are set aside. Whole numbers become fractions, and beyond 64
bits decimals, if no value changes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa

from headrace.lakehouse.decoders.arrays import Faults, Inexact, is_double, shows_type
from headrace.lakehouse.decoders.kinds import (
    BOOL,
    DEEPEST,
    FLOAT,
    INT,
    MOST_DIGITS,
    TEXT,
    WIDE,
    Field,
    Kind,
    array,
    of_fields,
    of_type,
)
from headrace.lakehouse.write.columns import MOST_COLUMNS, Names, leaves

_GROUPS: Final = {
    int: "number",
    float: "number",
    Inexact: "number",
    bool: "bool",
    str: "text",
    list: "list",
    dict: "object",
}
_NUMBERS: Final = {int, float, Inexact}
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_MOST: Final = 10**MOST_DIGITS
_FULL: Final = f"the table has {MOST_COLUMNS:,} columns of values, and gets no more"


def columns_of(values: Sequence[dict[str, Any] | None], known: pa.Schema, faults: Faults) -> Kind:
    """Return a struct of all fields that have a column in `known` or get one. `faults` gets reasons for others."""
    room = max(0, MOST_COLUMNS - leaves(known))
    if len(dict.fromkeys(chain.from_iterable(filter(None, values)))) > len(known) + room:
        values = _fitting(values, known, room, faults)
    fields, left = _fields(values, known, room, faults)
    if left < 0:  # more fields than the remaining room
        fields, _ = _fields(_fitting(values, known, room, faults), known, room, faults)
    return of_fields(fields)


def _fields(
    values: Sequence[dict[str, Any] | None], known: pa.Schema, room: int, faults: Faults
) -> tuple[list[Field], int]:
    names, types = Names(known.names), {one.name: one.type for one in known}
    taken: dict[str, str] = {}
    fields = []
    for source in dict.fromkeys(chain.from_iterable(filter(None, values))):
        here = [None if value is None else value.get(source) for value in values]
        try:
            column = names.column(source)
            kind = adopted(types[column], here) if column in types else inferred(here)
            if column in taken:
                raise ValueError(f"field {source[:40]!r}: field {taken[column]!r} has its column")
            if column not in types and kind is not None:
                room -= kind.leaves
                if room < 0:
                    return [], room
                names.add(column)
            if column in types and kind is None:
                raise ValueError(f"field {source[:40]!r}: no JSON becomes {types[column]}")
        except ValueError as error:
            _blame(values, here, str(error), faults)
            continue
        if kind is not None:
            taken[column] = source
            fields.append(Field(source, column, kind))
    return fields, room


def _fitting(
    values: Sequence[dict[str, Any] | None], known: pa.Schema, room: int, faults: Faults
) -> list[dict[str, Any] | None]:
    """Leave out values whose new fields have no room, and fields that show no type. Frequent fields come first."""
    names, own = Names(known.names), set(known.names)
    known_fields: dict[str, bool] = {}
    new: dict[int, set[tuple[str | None, ...]]] = {}
    kept: list[dict[str, Any] | None] = []
    for row, value in enumerate(values):
        shown = {name: each for name, each in (value or {}).items() if shows_type(each)}
        kept.append(None if value is None else shown)
        for name, each in shown.items():
            if name not in known_fields:
                known_fields[name] = _has_column(names, own, name)
            if not known_fields[name]:
                new.setdefault(row, set()).update(_paths(each, (name,)))
    often = Counter(chain.from_iterable(new.values()))
    chosen: set[tuple[str | None, ...]] = set()
    for row in sorted(new, key=lambda row: (-min(often[path] for path in new[row]), len(new[row]), row)):
        more = new[row] - chosen
        if len(chosen) + len(more) <= room:
            chosen |= more
        else:
            name = min(str(path[0]) for path in more)
            faults.setdefault(row, f"field {name[:40]!r}: {_FULL}")
            kept[row] = None
    return kept


def _has_column(names: Names, own: set[str], field: str) -> bool:
    try:
        return names.column(field) in own
    except ValueError:
        return False


def _paths(value: Any, above: tuple[str | None, ...]) -> Iterator[tuple[str | None, ...]]:
    if type(value) is dict:
        for name, each in value.items():
            yield from _paths(each, (*above, name))
    elif type(value) is list:
        for each in value:
            yield from _paths(each, (*above, None))
    elif value is not None:
        yield above


def _blame(values: Sequence[Any], here: Sequence[Any], why: str, faults: Faults) -> None:
    for row, (value, each) in enumerate(zip(values, here, strict=True)):
        if value is not None and shows_type(each):
            faults.setdefault(row, why)


def adopted(kind: pa.DataType, values: Sequence[Any]) -> Kind | None:
    """Return an existing column's kind, with the field names of these values."""
    found = of_type(kind, text=True)
    return None if found is None else _named(found, values)


def _named(kind: Kind, values: Sequence[Any]) -> Kind:
    if kind.name == "list":
        items = list(chain.from_iterable(one for one in values if type(one) is list))
        return Kind("list", kind.type, inner=(_named(kind.inner[0], items),), leaves=kind.leaves)
    if kind.name != "struct":
        return kind
    objects = [one for one in values if type(one) is dict]
    names = Names([one.column for one in kind.fields], own=False)
    sources: dict[str, str] = {}
    held: dict[str, list[Any]] = {}
    for value in objects:  # once: objects may have different fields
        for source, each in value.items():
            held.setdefault(source, []).append(each)
    for source in held:
        try:
            sources.setdefault(names.column(source), source)
        except ValueError:
            continue  # found later
    fields = []
    for one in kind.fields:
        source = sources.get(one.column)
        inner = one.kind if source is None else _named(one.kind, held[source])
        fields.append(Field(one.column if source is None else source, one.column, inner))
    return Kind("struct", kind.type, tuple(fields), closed=True, leaves=kind.leaves)


def inferred(values: Sequence[Any], depth: int = 1) -> Kind | None:
    """Return a new column's kind, or None if no value shows a type. Raise ValueError if none fits."""
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    counts = Counter(map(type, values))
    groups: Counter[str] = Counter()
    for one, count in counts.items():
        if one in _GROUPS:
            groups[_GROUPS[one]] += count
    if len(groups) > 1:
        groups = Counter(_GROUPS[type(one)] for one in values if shows_type(one))
    if not groups:
        return None
    group = groups.most_common(1)[0][0]
    if group == "number":
        return _number([one for one in values if type(one) in _NUMBERS])
    if group == "list":
        items = list(chain.from_iterable(one for one in values if type(one) is list))
        item = inferred(items, depth + 1)
        return None if item is None else array(item)
    if group == "object":
        return _object([one for one in values if type(one) is dict], depth)
    return BOOL if group == "bool" else TEXT


def _number(values: Sequence[Any]) -> Kind:
    whole = [one for one in values if type(one) is int]
    fractions = len(values) - len(whole)
    if fractions and sum(not is_double(one) for one in whole) <= fractions:
        return FLOAT
    if any(not _INT64[0] <= one <= _INT64[1] and abs(one) < _MOST for one in (min(whole), max(whole))):
        return WIDE
    return INT


def _object(values: Sequence[dict[str, Any]], depth: int) -> Kind | None:
    items: dict[str, list[Any]] = {}
    for value in values:
        for source, each in value.items():
            items.setdefault(source, []).append(each)
    names = Names([], own=False)
    fields = []
    for source, here in items.items():
        try:
            column = names.column(source)
            kind = inferred(here, depth + 1)
        except ValueError:
            continue
        if kind is not None:
            names.add(column)
            fields.append(Field(source, column, kind))
    return of_fields(fields, closed=True) if fields else None
