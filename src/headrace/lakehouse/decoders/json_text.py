"""Write decoded columns as JSON, with the names that the schema has."""

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.lakehouse.decoders.arrays import Inexact, as_json
from headrace.lakehouse.decoders.kinds import Kind


def texts(kind: Kind, columns: pa.StructArray) -> list[str]:
    """Return each row as an object.

    Bytes have a character for each, as in Avro's JSON encoding. Times are in RFC 3339.
    """
    return [as_json(_plain(kind, row)) for row in columns.to_pylist()]


def _plain(kind: Kind, value: Any) -> Any:  # noqa: PLR0911  # one for each kind
    if kind.name == "struct" and value is not None:
        # Columns may have other names, but the same order.
        return {one.source: _plain(one.kind, each) for one, each in zip(kind.fields, value.values(), strict=True)}
    if kind.name == "list" and value is not None:
        return [_plain(kind.inner[0], each) for each in value]
    if kind.name == "map" and value is not None:
        return {str(name): _plain(kind.inner[1], each) for name, each in value}
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return Inexact(format(value, "f"))
    if kind.name == "json" and isinstance(value, str):
        return json.loads(value)
    return value
