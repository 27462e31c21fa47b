"""Convert decoded columns to those of a table, exactly or with a reason per row."""

import pyarrow as pa

from headrace.lakehouse.decoders.arrays import Faults, column
from headrace.lakehouse.decoders.kinds import of_type
from headrace.lakehouse.write.columns import MOST_COLUMNS, leaves


def refitted(found: pa.StructArray, known: pa.Schema, faults: Faults) -> pa.StructArray:
    """Return rows with the types of `known`; `faults` gets reasons."""
    types = {one.name: one.type for one in known}
    room = MOST_COLUMNS - leaves(known)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    changed = False
    for place, one in enumerate(found.type):
        made = found.field(place)
        kind = types.get(one.name)
        if kind is None:
            more = leaves(pa.schema([one]))
            if more > room:
                _blame(made, faults, f"the table has {MOST_COLUMNS:,} columns of values, and gets no more")
                changed = True
                continue
            room -= more
        elif kind != one.type:
            made = _remade(made, one.name, kind, faults)
            changed = True
        arrays.append(made)
        fields.append(pa.field(one.name, made.type))
    if not changed:
        return found
    if not arrays:
        return pa.array([{}] * len(found), pa.struct([]))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _remade(made: pa.Array, name: str, kind: pa.DataType, faults: Faults) -> pa.Array:
    wanted = of_type(kind, text=False)
    if wanted is None:
        _blame(made, faults, f"column {name!r} of the table is {kind}, the value's is {made.type}")
        return pa.nulls(len(made), kind)
    own: Faults = {}
    again = column(wanted, made.to_pylist(maps_as_pydicts="lossy"), own, name)
    for row, why in own.items():
        faults.setdefault(row, f"column {name!r} of the table is {kind}, the value's is {made.type}: {why}"[:500])
    return again


def _blame(made: pa.Array, faults: Faults, why: str) -> None:
    for row, valid in enumerate(made.is_valid().to_pylist()):
        if valid:
            faults.setdefault(row, why)
