"""Read values in Avro's binary encoding without a container, all written with one known schema.

Items are counted before they are read, so a forged count costs nothing.
Source: Apache Avro 1.12, Specification, "Binary Encoding".
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import pyarrow as pa

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.arrays import Faults, column
from headrace.lakehouse.decoders.avro_schema import SchemaError, Type, branches, is_number, kind_of, parse
from headrace.lakehouse.decoders.cells import most_cells, too_many, width
from headrace.lakehouse.decoders.json_values import placed
from headrace.lakehouse.decoders.kinds import Kind
from headrace.lakehouse.write.columns import Decoded, first_line


class AvroDecoder:
    """Decode records of one schema."""

    def __init__(self, text: str, where: str, others: Mapping[str, str] | None = None) -> None:
        """Prepare. `where` names the schema in messages; `others` as for `parse`. Raise OptionError."""
        try:
            whole = parse(text, others)
            self.kind = kind_of(whole)
            self._read = reader(whole, self.kind)
        except (SchemaError, RecursionError) as error:
            raise OptionError(f"{where} is not an Avro schema that columns can be made of: {error}") from None

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values; see `Decoder`."""
        faults: Faults = {}
        found: list[dict[str, Any] | None] = []
        read = self._read
        for row, value in enumerate(values.to_pylist()):
            try:
                record, end = read(Value(value), 0)
                if end != len(value):
                    raise ValueError(f"{len(value) - end} bytes are left over")
                found.append(record)
            except (ValueError, IndexError, struct.error) as error:
                faults[row] = f"not a value of this schema: {_why(error)}"
                found.append(None)
        return Decoded(column(placed(self.kind, known), found, faults), faults)


def _why(error: Exception) -> str:
    return first_line(error) if isinstance(error, ValueError) else "it ends early"


class Value(bytes):
    """A value's bytes and remaining budget of cells."""

    left: int

    def __new__(cls, data: bytes) -> Self:
        """Start with the full budget."""
        made = super().__new__(cls, data)
        made.left = most_cells(len(data))
        return made


Read = Callable[[Value, int], tuple[Any, int]]

DEEPEST: Final = 100
"""Maximum depth of a type that contains itself."""
_MOST_DIGITS: Final = 10_000
"""Maximum digits of a decimal. The time to write one grows with the square of its digits."""
_FLOAT: Final = struct.Struct("<f").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_INT: Final = (-(1 << 31), (1 << 31) - 1)


class AvroError(ValueError):
    """The bytes do not match the schema."""


def reader(made: Type, kind: Kind) -> Read:  # noqa: PLR0911  # one for each kind
    """Return the reader of a type for this kind of column."""
    if kind.name == "json":
        return lambda data, at: _loose(made, data, at, 0)
    if made.name == "record":
        return _record(
            [(name, reader(each, one.kind)) for (name, each), one in zip(made.fields, kind.fields, strict=True)]
        )
    if made.name == "array":
        return _array(reader(made.inner[0], kind.inner[0]), width(kind.inner[0]))
    if made.name == "map":
        return _map(reader(made.inner[0], kind.inner[1]), 1 + width(kind.inner[1]))
    if made.name == "union":
        return _union(made, kind)
    if made.logical == "decimal":
        return _unscaled(_fixed(made.size) if made.name == "fixed" else _bytes, made.precision)
    if made.logical == "timestamp-millis":
        return _millis
    return (
        _of_symbols(made.symbols)
        if made.name == "enum"
        else _fixed(made.size)
        if made.name == "fixed"
        else _PLAIN[made.name]
    )


def _long(data: Value, at: int) -> tuple[int, int]:
    number = data[at]
    at += 1
    if number >= 0x80:
        number &= 0x7F
        shift = 7
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise AvroError("a number of more than ten bytes")
        if number >> 64:
            raise AvroError("a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _int(data: Value, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not _INT[0] <= number <= _INT[1]:
        raise AvroError("an int of more than 32 bits")
    return number, at


def _millis(data: Value, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    return number * 1000, at


def _boolean(data: Value, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise AvroError(f"a boolean of byte {data[at]}")
    return data[at] == 1, at + 1


def _bytes(data: Value, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise AvroError(f"{length:,} bytes where {len(data) - at:,} are left")
    return data[at:end], end


def _string(data: Value, at: int) -> tuple[str, int]:
    length, at = _long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise AvroError(f"a text of {length:,} bytes where {len(data) - at:,} are left")
    return data[at:end].decode(), end


def _fixed(size: int) -> Read:
    def read(data: Value, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise AvroError(f"{size:,} bytes where {len(data) - at:,} are left")
        return data[at : at + size], at + size

    return read


def _unscaled(raw: Read, precision: int) -> Read:
    digits = min(precision, _MOST_DIGITS)
    most = (10**digits).bit_length() // 8 + 1

    def read(data: Value, at: int) -> tuple[int, int]:
        found, at = raw(data, at)
        if len(found) > most:  # the leading bytes may be only the sign
            size = len(found.lstrip(found[:1])) if found[0] in {0x00, 0xFF} else len(found)
            if size > most:
                raise AvroError(f"a decimal of {size:,} bytes where {digits:,} digits take {most:,}")
        return int.from_bytes(found, "big", signed=True), at

    return read


def _of_symbols(symbols: list[str]) -> Read:
    def read(data: Value, at: int) -> tuple[str, int]:
        place, at = _long(data, at)
        if not 0 <= place < len(symbols):
            raise AvroError(f"symbol {place} of an enum that has {len(symbols)}")
        return symbols[place], at

    return read


_PLAIN: Final[dict[str, Read]] = {
    "null": lambda _, at: (None, at),
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": lambda data, at: (_FLOAT(data, at)[0], at + 4),
    "double": lambda data, at: (_DOUBLE(data, at)[0], at + 8),
    "bytes": _bytes,
    "string": _string,
}


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(data: Value, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, each in fields:
            found[name], at = each(data, at)
        return found, at

    return read


def _count(data: Value, at: int) -> tuple[int, int]:
    count, at = _long(data, at)
    if count >= 0:
        return count, at
    _, at = _long(data, at)
    return -count, at


def _charge(data: Value, at: int, count: int, cells: int, what: str) -> None:
    if count * max(1, cells) > data.left:
        left = len(data) - at
        raise AvroError(f"{what} where {left:,} bytes are left" if count > left else too_many(len(data)))
    data.left -= count * cells


def _array(item: Read, cells: int) -> Read:
    def read(data: Value, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _count(data, at)
            if not count:
                return found, at
            _charge(data, at, count, cells, f"an array of {count:,} items")
            for _ in range(count):
                one, at = item(data, at)
                found.append(one)

    return read


def _map(value: Read, cells: int) -> Read:
    def read(data: Value, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _count(data, at)
            if not count:
                return found, at
            _charge(data, at, count, cells, f"a map of {count:,} entries")
            for _ in range(count):
                key, at = _string(data, at)
                found[key], at = value(data, at)

    return read


def _union(made: Type, kind: Kind) -> Read:
    named = branches(made)
    if len(named) < 2 or is_number(made):
        choices = [_PLAIN["null"] if one.name == "null" else reader(one, kind) for one in made.inner]
    else:
        inner = {
            id(one): _labelled(name, reader(one, part.kind))
            for (name, one), part in zip(named, kind.fields, strict=True)
        }
        choices = [inner.get(id(one), _PLAIN["null"]) for one in made.inner]
    most = len(choices)

    def read(data: Value, at: int) -> tuple[Any, int]:
        place = data[at] >> 1
        if data[at] & 0x81:
            place, at = _long(data, at)
        else:
            at += 1
        if not 0 <= place < most:
            raise AvroError(f"type {place} of a union that has {most}")
        return choices[place](data, at)

    return read


def _labelled(name: str, each: Read) -> Read:
    def read(data: Value, at: int) -> tuple[dict[str, Any], int]:
        value, at = each(data, at)
        return {name: value}, at

    return read


def _loose(made: Type, data: Value, at: int, depth: int) -> tuple[Any, int]:
    data.left -= 1
    if depth > DEEPEST or data.left < 0:
        raise AvroError(f"nested deeper than {DEEPEST} levels" if depth > DEEPEST else too_many(len(data)))
    if made.name == "record":
        found: dict[str, Any] = {}
        for name, each in made.fields:
            found[name], at = _loose(each, data, at, depth + 1)
        return found, at
    if made.name == "union":
        place, at = _long(data, at)
        if not 0 <= place < len(made.inner):
            raise AvroError(f"type {place} of a union that has {len(made.inner)}")
        return _loose(made.inner[place], data, at, depth + 1)
    if made.name in {"array", "map"}:
        # These readers charge their own items.
        read = _array if made.name == "array" else _map
        return read(lambda data, at: _loose(made.inner[0], data, at, depth + 1), 0)(data, at)
    if made.name == "enum":
        return _of_symbols(made.symbols)(data, at)
    return (_fixed(made.size) if made.name == "fixed" else _PLAIN[made.name])(data, at)
