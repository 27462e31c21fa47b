"""Values through the guard of a typed table, without a log: what becomes of each, and whether that is exact."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.lakehouse.decoders.decoder import Decoding, Values
from headrace.lakehouse.write import data_files
from headrace.lakehouse.write.columns import Names
from headrace.lakehouse.write.table import COLUMNS

NOTHING = pa.schema([])


@dataclass
class Split:
    """What became of values."""

    table: dict[int, dict[str, Any]]
    """Row -> its columns of values, nulls left out, as a reader of Parquet has them."""
    dead: dict[int, str]
    """Row -> why it was set aside."""
    columns: pa.Schema
    """Of values, afterwards."""


def batch_of(values: Sequence[bytes | None]) -> pa.RecordBatch:
    """Records with these values, as the log gives them; their offsets are their places."""
    count = len(values)
    columns = {
        "key": [None] * count,
        "value": values,
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": range(count),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
        "headers": [None] * count,
        "topicId": ["id"] * count,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[one.name], one.type) for one in COLUMNS], schema=COLUMNS)


def split(decoding: Decoding, values: Sequence[bytes | None], known: pa.Schema = NOTHING) -> Split:
    """Decode the values; asserts what must hold of all: none is lost, and any reader can read the rest."""
    decoder = Values(decoding, known)
    good, bad = decoder.split(batch_of(values))
    good.validate(full=True)
    bad.validate(full=True)
    offsets = [*good.column("offset").to_pylist(), *bad.column("offset").to_pylist()]
    assert sorted(offsets) == list(range(len(values))), "each is in one of the two tables, once"
    for part in (good, bad):
        kept = zip(part.column("offset").to_pylist(), part.column("value").to_pylist(), strict=True)
        assert all(values[at] == value for at, value in kept), "the records themselves stay as they are"
    names = [one.casefold() for one in good.schema.names]
    assert len(set(names)) == len(names), names
    assert decoder.columns.names[: len(known)] == known.names
    file = io.BytesIO()
    with data_files.writer(file, good.schema) as writer:
        writer.write_batch(good)
    rows = pq.read_table(file).to_pylist(maps_as_pydicts="strict")
    own = set(COLUMNS.names)
    reasons = dict(zip(bad.column("offset").to_pylist(), bad.column("reason").to_pylist(), strict=True))
    assert all(reasons.values())
    table = {
        row["offset"]: {name: each for name, each in row.items() if name not in own and each is not None}
        for row in rows
    }
    return Split(table, reasons, decoder.columns)


def same(found: Any, wanted: Any) -> bool:
    """Whether a column's value is the JSON value `wanted`, whose numbers are int and Decimal; null for what shows no
    type is the same.
    """
    if found is None:
        return not _shows(wanted)
    if isinstance(wanted, bool) or isinstance(found, bool) or isinstance(wanted, str):
        return type(found) is type(wanted) and bool(found == wanted)
    if isinstance(wanted, dict):
        return isinstance(found, dict) and _same_fields(found, wanted)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    return isinstance(found, int | float | Decimal) and _same_number(found, Decimal(wanted))


def _same_fields(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    names = Names(found, own=False)
    columns = {names.column(name): each for name, each in wanted.items() if _shows(each)}
    return all(name in found for name in columns) and all(same(found[name], columns.get(name)) for name in found)


def _same_number(found: float | Decimal, wanted: Decimal) -> bool:
    if not isinstance(found, float):
        return found == wanted
    digits = max(1, len("".join(map(str, wanted.as_tuple().digits)).lstrip("0")))
    rounding = Context(prec=digits, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999)
    return rounding.plus(Decimal(found)) == wanted


def _shows(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_shows, value.values()))
    return any(map(_shows, value)) if isinstance(value, list) else value is not None
