"""What a topic's records look like: columns of JSON values, from a sample. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

_MOSTLY: Final = 0.8
"""A topic counts as JSON when so much of its sample is."""
_MOST_COLUMNS: Final = 200


@dataclass(frozen=True)
class Column:
    """A field that values have, and its Spark type."""

    name: str
    type: str


def columns(values: Iterable[bytes | None]) -> list[Column]:
    """The fields of JSON objects, in the order in which they came; none when the values are mostly something else.

    Of fields whose names differ only in case, which are one to Spark, the first stays.
    """
    found: dict[str, str | None] = {}
    objects = total = 0
    for value in values:
        if value is None:
            continue
        total += 1
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(parsed, dict):
            objects += 1
            _widen(found, parsed)
    if not objects or objects < total * _MOSTLY:
        return []
    first: dict[str, Column] = {}
    for name, kind in found.items():
        # A field that was null every time may be anything, which text can hold.
        first.setdefault(name.lower(), Column(name, kind or "STRING"))
    return list(first.values())[:_MOST_COLUMNS]


def ddl(found: Iterable[Column]) -> str:
    """The columns as Spark's `from_json` takes them."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in found)


def quoted(name: str) -> str:
    """A column's name in SQL."""
    return f"`{name.replace('`', '``')}`"


def _widen(found: dict[str, str | None], row: Mapping[str, object]) -> None:
    for name, value in row.items():
        kind, known = _type(value), found.get(name)
        if known is None or kind is None or known == kind:
            found[name] = known or kind
        elif {known, kind} == {"BIGINT", "DOUBLE"}:
            found[name] = "DOUBLE"
        else:
            found[name] = "STRING"


def _type(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "STRING"
    return "DOUBLE" if isinstance(value, float) else "STRING"
