"""Avro's binary encoding, read in the shape of the columns. A reader takes bytes and a place, and returns both on.

Every loop of it takes a byte of the value for each step, or is counted: what a value claims to have costs nothing.
Source: Apache Avro 1.12, Specification, "Binary Encoding".
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from headrace.lakehouse.typed.avro_schema import Type, branches, is_number
from headrace.lakehouse.typed.kinds import Kind

Read = Callable[[bytes, int], tuple[Any, int]]

DEEPEST: Final = 100
"""Levels of a type that contains itself."""
_MOST_EMPTY: Final = 1_000
"""Items of an array that take no bytes."""
_NODES: Final = (10_000, 4)
"""Values inside of one that becomes JSON: so many, and so many more for each byte."""
_FLOAT: Final = struct.Struct("<f").unpack_from
_DOUBLE: Final = struct.Struct("<d").unpack_from
_INT: Final = (-(1 << 31), (1 << 31) - 1)


class AvroError(ValueError):
    """Bytes that are no value of the schema."""


def reader(made: Type, kind: Kind) -> Read:  # noqa: PLR0911  # one for each kind
    """The reader of a type whose column is of this kind."""
    if kind.name == "json":
        return lambda data, at: _Loose(data).read(made, at, 0)
    if made.name == "record":
        return _record(
            [(name, reader(each, one.kind)) for (name, each), one in zip(made.fields, kind.fields, strict=True)]
        )
    if made.name == "array":
        return _array(reader(made.inner[0], kind.inner[0]), empty=not takes_bytes(made.inner[0]))
    if made.name == "map":
        return _map(reader(made.inner[0], kind.inner[1]))
    if made.name == "union":
        return _union(made, kind)
    if made.logical == "decimal":
        return _unscaled(_fixed(made.size) if made.name == "fixed" else _bytes)
    if made.logical == "timestamp-millis":
        return _millis
    return (
        _of_symbols(made.symbols)
        if made.name == "enum"
        else _fixed(made.size)
        if made.name == "fixed"
        else _PLAIN[made.name]
    )


def takes_bytes(made: Type, above: tuple[Type, ...] = ()) -> bool:
    """Whether each value of a type takes bytes."""
    if made.name == "record" and made not in above:
        return any(takes_bytes(each, (*above, made)) for _, each in made.fields)
    return made.name not in {"null", "record"} and (made.name != "fixed" or made.size > 0)


# Scalars


def _long(data: bytes, at: int) -> tuple[int, int]:
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


def _int(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    if not _INT[0] <= number <= _INT[1]:
        raise AvroError("an int of more than 32 bits")
    return number, at


def _millis(data: bytes, at: int) -> tuple[int, int]:
    number, at = _long(data, at)
    return number * 1000, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise AvroError(f"a boolean of byte {data[at]}")
    return data[at] == 1, at + 1


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise AvroError(f"{length:,} bytes where {len(data) - at:,} are left")
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    length, at = _long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise AvroError(f"a text of {length:,} bytes where {len(data) - at:,} are left")
    return data[at:end].decode(), end


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise AvroError(f"{size:,} bytes where {len(data) - at:,} are left")
        return data[at : at + size], at + size

    return read


def _unscaled(raw: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[int, int]:
        found, at = raw(data, at)
        return int.from_bytes(found, "big", signed=True), at

    return read


def _of_symbols(symbols: list[str]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
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


# Nested


def _record(fields: list[tuple[str, Read]]) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, each in fields:
            found[name], at = each(data, at)
        return found, at

    return read


def _count(data: bytes, at: int) -> tuple[int, int]:
    """The items of a block; a negative number is followed by the block's size."""
    count, at = _long(data, at)
    if count >= 0:
        return count, at
    _, at = _long(data, at)
    return -count, at


def _array(item: Read, *, empty: bool) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = _count(data, at)
            if not count:
                return found, at
            if count > (_MOST_EMPTY - len(found) if empty else len(data) - at):
                raise AvroError(f"an array of {count:,} items where {len(data) - at:,} bytes are left")
            for _ in range(count):
                one, at = item(data, at)
                found.append(one)

    return read


def _map(value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            count, at = _count(data, at)
            if not count:
                return found, at
            if count > len(data) - at:
                raise AvroError(f"a map of {count:,} entries where {len(data) - at:,} bytes are left")
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

    def read(data: bytes, at: int) -> tuple[Any, int]:
        place = data[at] >> 1
        if data[at] & 0x81:  # negative, or of more than a byte
            place, at = _long(data, at)
        else:
            at += 1
        if not 0 <= place < most:
            raise AvroError(f"type {place} of a union that has {most}")
        return choices[place](data, at)

    return read


def _labelled(name: str, each: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        value, at = each(data, at)
        return {name: value}, at

    return read


class _Loose:
    """Reads one value that becomes JSON, whose type may contain itself."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _NODES[0] + _NODES[1] * len(data)

    def read(self, made: Type, at: int, depth: int) -> tuple[Any, int]:
        data = self._data
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise AvroError(f"nested deeper than {DEEPEST} levels, or of very many parts")
        if made.name == "record":
            found: dict[str, Any] = {}
            for name, each in made.fields:
                found[name], at = self.read(each, at, depth + 1)
            return found, at
        if made.name == "union":
            place, at = _long(data, at)
            if not 0 <= place < len(made.inner):
                raise AvroError(f"type {place} of a union that has {len(made.inner)}")
            return self.read(made.inner[place], at, depth + 1)
        if made.name == "array":
            return _array(lambda _, at: self.read(made.inner[0], at, depth + 1), empty=not takes_bytes(made.inner[0]))(
                data, at
            )
        if made.name == "map":
            return _map(lambda _, at: self.read(made.inner[0], at, depth + 1))(data, at)
        if made.name == "enum":
            return _of_symbols(made.symbols)(data, at)
        return (_fixed(made.size) if made.name == "fixed" else _PLAIN[made.name])(data, at)
