"""Convert decoded values to an Arrow column of one kind, exactly or not at all.

Values have the Python types of `json`, Avro and Protobuf. One that does not fit is null in the column and has a reason
in `faults`.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import accumulate, chain, repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.lakehouse.decoders.kinds import Kind

Faults = dict[int, str]
"""Row -> the first reason why its value could not be decoded."""

_NONE: Final = type(None)
_EXACT: Final = 1 << 53
_SHOWN: Final = 40
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# Years 1 to 9999: Python readers and Delta's statistics support no others.
_INSTANTS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DATES: Final = (-719_162, 2_932_896)
_RANGES: Final = {"instant": _INSTANTS, "date": _DATES}
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_RFC3339: Final = re.compile(
    rf"(\d{{4}}-\d\d-\d\d)[Tt ]({_CLOCK}:\d\d)(?:\.(\d{{1,30}}))?([Zz]|[+-]{_CLOCK})", re.ASCII
)
_INT64: Final = (-(1 << 63), (1 << 63) - 1)


class Inexact(str):
    """A JSON number beyond doubles, as written."""

    __slots__ = ()


_NAMES: Final = {
    bool: "true or false",
    int: "a whole number",
    float: "a fraction",
    Inexact: "a fraction",
    str: "text",
    bytes: "bytes",
    list: "a list",
    dict: "an object",
    datetime: "a time",
    date: "a date",
}


def column(kind: Kind, values: Sequence[Any], faults: Faults, path: str = "") -> pa.Array:
    """Return a column; `path` names it in reasons."""
    return _build(kind, values, range(len(values)), faults, path)


def _build(kind: Kind, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str) -> pa.Array:
    if kind.name in _NESTED:
        return _NESTED[kind.name](kind, values, rows, faults, path)
    plain, convert = _SCALARS[kind.name]
    found = set(map(type, values))
    found.discard(_NONE)
    if found == {int} and kind.name in _RANGES:
        counted = _counted(kind, values)
        if counted is not None:
            return counted
    if found == {int} and kind.name == "decimal" and not kind.scale and not pa.types.is_string(kind.type):
        values = [None if value is None else Decimal(value) for value in values]
        plain = found = {Decimal}
    if found <= plain:
        try:
            return pa.array(values, kind.type)
        except (pa.ArrowException, ValueError, OverflowError):
            pass  # found by a later check
    converted = [_one(convert, kind, value, row, faults, path) for value, row in zip(values, rows, strict=True)]
    return pa.array(converted, kind.type)


def _counted(kind: Kind, values: Sequence[Any]) -> pa.Array | None:
    low, high = _RANGES[kind.name]
    try:
        numbers = pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError):
        return None
    extremes = pc.min_max(numbers)
    if extremes["min"].as_py() < low or extremes["max"].as_py() > high:
        return None
    return numbers.cast(pa.int32() if kind.name == "date" else pa.int64()).cast(kind.type)


def _one(convert: Callable[[Kind, Any], Any], kind: Kind, value: Any, row: int, faults: Faults, path: str) -> Any:
    if value is None:
        return None
    try:
        return convert(kind, value)
    except (ValueError, ArithmeticError, RecursionError) as error:
        faults.setdefault(row, f"{_at(path)}: {error}")
        return None


def _at(path: str) -> str:
    return f"field {path}" if path else "the value"


def shown(value: Any) -> str:
    """Return a value's type and first characters."""
    text = repr(value) if type(value) in {bool, float, int} and not _huge(value) else ""
    if isinstance(value, str):
        text = value[:_SHOWN] if isinstance(value, Inexact) else ascii(value[:_SHOWN])
    return f"{_NAMES.get(type(value), 'a value')}{' ' + text[:_SHOWN] if text else ''}"


def _huge(value: Any) -> bool:
    return type(value) is int and value.bit_length() > 128


def _mismatch(kind: Kind, value: Any) -> ValueError:
    return ValueError(f"{shown(value)} does not fit a column of {kind.type}")


def _bool(kind: Kind, value: Any) -> bool:
    if type(value) is not bool:
        raise _mismatch(kind, value)
    return value


def _int(kind: Kind, value: Any) -> int:
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if type(value) is not int:
        raise _mismatch(kind, value)
    if not _INT64[0] <= value <= _INT64[1]:
        raise ValueError(f"{shown(value)} does not fit into 64 bits")
    return value


def _float(kind: Kind, value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is not int:
        raise _mismatch(kind, value)
    if not is_double(value):
        raise ValueError(f"{shown(value)} has more digits than a double keeps")
    return float(value)


def as_double(text: str) -> float | Inexact:
    """Return a fraction as a double if the double, written with as many digits, is the same number."""
    number = float(text)
    if repr(number) == text and math.isfinite(number):
        return number
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, behind = mantissa.lstrip("-").partition(".")
    digits = (whole + behind).lstrip("0")
    if len(digits) > 800 or len(exponent) > 6:  # more than any double has
        return Inexact(text)
    if not digits:
        return number
    written, _, power = f"{abs(number):.{len(digits) - 1}e}".partition("e")
    leading = len(whole + behind) - len(digits)
    if written.replace(".", "") != digits or int(power) != int(exponent or 0) + len(whole) - 1 - leading:
        return Inexact(text)
    return number


def is_double(value: int) -> bool:
    """Return whether a double represents this number."""
    return value.bit_length() <= 1023 and float(value) == value


def _decimal(kind: Kind, value: Any) -> Any:
    if type(value) is float and value.is_integer() and abs(value) <= _EXACT and not kind.scale:
        value = int(value)
    if isinstance(value, Decimal):
        number = value
    elif type(value) is int:
        number = Decimal(value).scaleb(-kind.scale, _WIDE) if kind.scale else Decimal(value)
    else:
        raise _mismatch(kind, value)
    if pa.types.is_string(kind.type):
        return format(number, "f")
    digits = len(number.as_tuple().digits)
    exponent = number.as_tuple().exponent
    whole = max(0, digits + (exponent if isinstance(exponent, int) else 0))
    if number and whole > kind.type.precision - kind.type.scale:
        raise ValueError(f"a number of {whole} digits does not fit a column of {kind.type}")
    return number


_WIDE: Final = Context(prec=1 << 22, Emax=1 << 30, Emin=-(1 << 30))


def _text(kind: Kind, value: Any) -> str:
    if type(value) is not str:
        raise _mismatch(kind, value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text that UTF-8 cannot have: half of a surrogate pair") from None
    return value


def _bytes(kind: Kind, value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _mismatch(kind, value)
    return value


def _time(kind: Kind, value: Any) -> int:
    if type(value) is not str:
        raise _mismatch(kind, value)
    return _instant(kind, microseconds(value))


def _instant(kind: Kind, value: Any) -> int:
    if type(value) is not int:
        raise _mismatch(kind, value)
    if not _INSTANTS[0] <= value <= _INSTANTS[1]:
        raise ValueError("a time outside of the years 1 to 9999")
    return value


def microseconds(text: str) -> int:
    """Return an RFC 3339 time as exact microseconds since 1970. Raise ValueError."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} is no time of RFC 3339, such as 2026-01-02T03:04:05Z")
    day, clock, fraction, zone = found.groups()
    fraction = (fraction or "").rstrip("0")
    if len(fraction) > 6:
        raise ValueError(f"{shown(text)} has more digits than microseconds")
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
        return (moment - _EPOCH) // _MICROSECOND + int(fraction.ljust(6, "0"))
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(text)} is no time that there is") from None


def _date(kind: Kind, value: Any) -> int:
    if type(value) is not int:
        raise _mismatch(kind, value)
    if not _DATES[0] <= value <= _DATES[1]:
        raise ValueError("a date outside of the years 1 to 9999")
    return value


def _moment(kind: Kind, value: Any) -> int:
    if type(value) is not datetime:
        raise _mismatch(kind, value)
    return _instant(kind, (value - _EPOCH) // _MICROSECOND)


def _day(kind: Kind, value: Any) -> int:
    if type(value) is not date:  # a datetime is a date to Python, too
        raise _mismatch(kind, value)
    return value.toordinal() - _EPOCH.toordinal()


def as_json(value: Any) -> str:
    """Return JSON. Numbers keep their text; bytes become one character each, as in Avro's JSON encoding."""
    if isinstance(value, Inexact):
        return value
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    if value is None or isinstance(value, str | float | int):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {as_json(each)}" for name, each in value.items()]
        return f"{{{', '.join(parts)}}}"
    return f"[{', '.join(map(as_json, value))}]"


def _json(_kind: Kind, value: Any) -> str:
    text = as_json(value)
    text.encode()
    return text


_SCALARS: Final[dict[str, tuple[set[type], Callable[[Kind, Any], Any]]]] = {
    "bool": ({bool}, _bool),
    "int": ({int}, _int),
    "float": ({float}, _float),
    "decimal": (set(), _decimal),
    "text": ({str}, _text),
    "bytes": ({bytes}, _bytes),
    "instant": (set(), _instant),
    "time": (set(), _time),
    "date": (set(), _date),
    "moment": (set(), _moment),
    "day": (set(), _day),
    "json": (set(), _json),
}


def _only(
    kind: Kind, wanted: type, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str
) -> Sequence[Any]:
    if not set(map(type, values)) - {wanted, _NONE}:
        return values
    kept = []
    for value, row in zip(values, rows, strict=True):
        if value is not None and type(value) is not wanted:
            faults.setdefault(row, f"{_at(path)}: {_mismatch(kind, value)}")
        kept.append(value if type(value) is wanted else None)
    return kept


def _struct(kind: Kind, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str) -> pa.Array:
    values = _only(kind, dict, values, rows, faults, path)
    if kind.closed:
        _closed(kind, values, rows, faults, path)
    present = None in values
    children = [
        _build(
            one.kind,
            [None if value is None else value.get(one.source) for value in values]
            if present
            else [value.get(one.source) for value in values],
            rows,
            faults,
            f"{path}.{one.source}" if path else one.source,
        )
        for one in kind.fields
    ]
    mask = pa.array([value is None for value in values], pa.bool_()) if present else None
    if not children:
        return pa.array([None if value is None else {} for value in values], kind.type)
    return pa.StructArray.from_arrays(children, fields=list(kind.type), mask=mask)


def _closed(kind: Kind, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str) -> None:
    known = {one.source for one in kind.fields}
    if set(chain.from_iterable(filter(None, values))) <= known:
        return
    for value, row in zip(values, rows, strict=True):
        for name in value or ():
            if name not in known and shows_type(value[name]):
                faults.setdefault(row, f"{_at(path)}: the column has no field {name[:_SHOWN]!r}")


def shows_type(value: Any) -> bool:
    """Return whether a value shows a type, unlike null and empty lists and objects."""
    if type(value) is dict:
        return any(map(shows_type, value.values()))
    return any(map(shows_type, value)) if type(value) is list else value is not None


def _list(kind: Kind, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str) -> pa.Array:
    values = _only(kind, list, values, rows, faults, path)
    flat, places, offsets, mask = _flat(values, rows)
    items = _build(kind.inner[0], flat, places, faults, path)
    return pa.ListArray.from_arrays(offsets, items, type=kind.type, mask=mask)


def _map(kind: Kind, values: Sequence[Any], rows: Sequence[int], faults: Faults, path: str) -> pa.Array:
    values = _only(kind, dict, values, rows, faults, path)
    flat, places, offsets, mask = _flat([None if value is None else list(value.items()) for value in values], rows)
    keys = _build(kind.inner[0], [key for key, _ in flat], places, faults, path)
    items = _build(kind.inner[1], [item for _, item in flat], places, faults, path)
    if keys.null_count:  # a map has no null keys
        bad = [row in faults for row in rows]
        values = [None if gone else value for gone, value in zip(bad, values, strict=True)]
        return _map(kind, values, rows, faults, path)
    if mask is None:
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind.type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind.type, mask=mask)


def _flat(values: Sequence[Any], rows: Sequence[int]) -> tuple[list[Any], Sequence[int], pa.Array, pa.Array | None]:
    lengths = [0 if value is None else len(value) for value in values]
    flat = list(chain.from_iterable(filter(None, values)))
    places = list(chain.from_iterable(map(repeat, rows, lengths)))
    offsets = pa.array(accumulate(lengths, initial=0), pa.int32())
    mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
    return flat, places, offsets, mask


_NESTED: Final[dict[str, Callable[[Kind, Sequence[Any], Sequence[int], Faults, str], pa.Array]]] = {
    "struct": _struct,
    "list": _list,
    "map": _map,
}


def row_texts(kind: Kind, columns: pa.StructArray) -> list[str]:
    """Return each row as a JSON object, with the names that the schema has.

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
