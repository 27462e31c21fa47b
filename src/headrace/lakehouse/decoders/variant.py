"""Encode JSON values as VARIANT, Parquet's binary form in which each value has its own shape.

Objects refer to a dictionary of field names, `metadata`. Numbers follow Spark's `parse_json`: integers in as few bytes
as possible, fractions as decimals up to 38 digits, others as doubles unless that changes them.
Source: Apache Parquet, VariantEncoding.md.
"""

import struct
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.lakehouse.decoders.arrays import Inexact, as_double, is_double
from headrace.lakehouse.decoders.json_values import depth
from headrace.lakehouse.write.columns import Decoded, first_line
from headrace.lakehouse.write.table import VARIANT

COLUMN: Final = "json"
STRUCT: Final = pa.struct([pa.field(one.name, one.type) for one in VARIANT])
"""A struct with the same two parts, for readers without the type."""

DEEPEST: Final = 200
"""Maximum nesting of objects and lists."""
_MOST_DIGITS: Final = 38
_LONGEST_NUMBER: Final = 100
_SHORT: Final = 64
"""Strings with fewer bytes have their length in the first byte."""
_MANY: Final = 256
"""Objects and arrays with at least this many elements count them in four bytes."""
# First bytes: two bits of basic type, then the value's type above them.
_NULL, _TRUE, _FALSE = b"\x00", b"\x04", b"\x08"
_INTS: Final = ((8, 1, b"\x0c"), (16, 2, b"\x10"), (32, 4, b"\x14"), (64, 8, b"\x18"))
_DOUBLE: Final = b"\x1c"

_DECIMALS: Final = ((4, 9, b"\x20"), (8, 18, b"\x24"), (16, _MOST_DIGITS, b"\x28"))
_STRING: Final = b"\x40"
_SHORT_STRINGS: Final = tuple(bytes([length << 2 | 1]) for length in range(_SHORT))
_OBJECT: Final = 2
_ARRAY: Final = 3


class VariantDecoder:
    """Makes one column of JSON values, `json`."""

    def __init__(self, *, plain: bool) -> None:
        """Prepare. An existing column keeps its type; a new one is STRUCT if `plain`, otherwise VARIANT."""
        self._plain = plain

    def decode(self, values: pa.Array, known: pa.Schema) -> Decoded:
        """Decode values; see `Decoder`."""
        there = known.field(COLUMN).type if COLUMN in known.names else None
        kind = there if there in {VARIANT, STRUCT} else STRUCT if self._plain else VARIANT
        reasons: dict[int, str] = {}
        encoder = Encoder()
        metadata, encoded = [], []
        for row, text in enumerate(values.to_pylist()):
            try:
                names, value = encoder.encode(text)
            except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
                deep = isinstance(error, RecursionError)
                reasons[row] = f"the value is nested deeper than {DEEPEST} levels" if deep else first_line(error)
                names, value = b"", b""
            metadata.append(names)
            encoded.append(value)
        bad = pa.array([row in reasons for row in range(len(encoded))]) if reasons else None
        parts = [pa.array(metadata, pa.binary()), pa.array(encoded, pa.binary())]
        column = pa.StructArray.from_arrays(parts, fields=list(kind), mask=bad)
        return Decoded(pa.StructArray.from_arrays([column], names=[COLUMN], mask=bad), reasons)


class Encoder:
    """Encodes a batch. Equal dictionaries are made once."""

    def __init__(self) -> None:
        self._dictionaries: dict[tuple[str, ...], bytes] = {}

    def encode(self, text: bytes) -> tuple[bytes, bytes]:
        """Return the `metadata` and `value` of a JSON text.

        Raises:
            msgspec.MsgspecError, ValueError, OverflowError, RecursionError: Invalid JSON, or too large a number or
            depth.
        """
        names: dict[str, int] = {}
        found = _JSON.decode(text)
        if text.count(b"{") + text.count(b"[") > DEEPEST and depth(found) > DEEPEST:
            raise ValueError(f"the value is nested deeper than {DEEPEST} levels")
        value = _KINDS[type(found)](found, names)
        key = tuple(names)
        metadata = self._dictionaries.get(key)
        if metadata is None:
            metadata = self._dictionaries[key] = _dictionary(key)
        return metadata, value


def _fraction(text: str) -> bytes:
    before, _, behind = text.partition(".")
    if behind.isdigit() and len(text) < _LONGEST_NUMBER:
        unscaled, scale = int(before + behind), len(behind)
        # At least the digits after the decimal point.
        precision = max(len(str(abs(unscaled))), scale)
        if precision <= _MOST_DIGITS:
            return _decimal(unscaled, scale, precision)
    return _double(as_double(text))


def _double(number: float | Inexact) -> bytes:
    if isinstance(number, Inexact):
        raise ValueError(f"the number {number[:40]} has more digits than a double keeps, or is beyond doubles")
    return _DOUBLE + struct.pack("<d", number)


def _decimal(unscaled: int, scale: int, precision: int) -> bytes:
    size, first = next((size, first) for size, most, first in _DECIMALS if precision <= most)
    return first + bytes([scale]) + unscaled.to_bytes(size, "little", signed=True)


def _whole(number: int) -> bytes:
    bits = (number if number >= 0 else ~number).bit_length() + 1
    for most, size, first in _INTS:
        if bits <= most:
            return first + number.to_bytes(size, "little", signed=True)
    digits = len(str(abs(number)))
    if digits <= _MOST_DIGITS:
        return _decimal(number, 0, digits)
    return _double(float(number) if is_double(number) else Inexact(number))


def _text(value: str) -> bytes:
    raw = value.encode()
    length = len(raw)
    return _SHORT_STRINGS[length] + raw if length < _SHORT else _STRING + length.to_bytes(4, "little") + raw


def _object(value: dict[str, Any], names: dict[str, int]) -> bytes:
    ids = [names.setdefault(name, len(names)) for name in value]
    starts, data = _laid_out(value.values(), names)
    # Strings compare by code point, the byte order of UTF-8.
    ordered = sorted(zip(value, ids, starts, strict=False))
    id_size, start_size = _size(max(ids, default=0)), _size(starts[-1])
    large = len(ids) >= _MANY
    first = (large << 4 | id_size - 1 << 2 | start_size - 1) << 2 | _OBJECT
    return b"".join(
        (
            first.to_bytes(),
            len(ids).to_bytes(4 if large else 1, "little"),
            _numbers([number for _, number, _ in ordered], id_size),
            _numbers([*(start for _, _, start in ordered), starts[-1]], start_size),
            *data,
        )
    )


def _array(value: list[Any], names: dict[str, int]) -> bytes:
    starts, data = _laid_out(value, names)
    start_size = _size(starts[-1])
    large = len(value) >= _MANY
    first = (large << 2 | start_size - 1) << 2 | _ARRAY
    count = len(value).to_bytes(4 if large else 1, "little")
    return b"".join((first.to_bytes(), count, _numbers(starts, start_size), *data))


def _laid_out(values: Iterable[Any], names: dict[str, int]) -> tuple[list[int], list[bytes]]:
    data = [_KINDS[type(value)](value, names) for value in values]
    return list(accumulate(map(len, data), initial=0)), data


def _size(most: int) -> int:
    return max(1, (most.bit_length() + 7) // 8)


def _numbers(numbers: list[int], size: int) -> bytes:
    return bytes(numbers) if size == 1 else b"".join([number.to_bytes(size, "little") for number in numbers])


def _dictionary(names: tuple[str, ...]) -> bytes:
    texts = [name.encode() for name in names]
    starts = [0]
    for text in texts:
        starts.append(starts[-1] + len(text))
    size = _size(max(starts[-1], len(texts)))
    return b"".join((bytes((1 | size - 1 << 6,)), len(texts).to_bytes(size, "little"), _numbers(starts, size), *texts))


_KINDS: Final[dict[type, Callable[[Any, dict[str, int]], bytes]]] = {
    dict: _object,
    list: _array,
    str: lambda value, _: _text(value),
    int: lambda value, _: _whole(value),
    bytes: lambda value, _: value,
    bool: lambda value, _: _TRUE if value else _FALSE,
    type(None): lambda _value, _names: _NULL,
}
_JSON: Final = msgspec.json.Decoder(float_hook=_fraction)
