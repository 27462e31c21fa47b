"""Helpers of generated code."""

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NoReturn
from uuid import UUID

from headrace.protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview

SMALL: Final = 16
"""Shorter number arrays have a precompiled struct."""


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS: Final = [_encode_varint(value) for value in range(2048)]


def varint(value: int) -> bytes:
    """Return an unsigned integer in groups of seven bits, lowest first."""
    return _VARINTS[value] if 0 <= value < 2048 else _encode_varint(value)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned integer and the next position. Raises IndexError at the end."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                raise DecodeError(f"integer {value} has more than 32 bits")
            return value, position
        shift += 7
        if shift > 28:
            raise DecodeError("an integer of more than five bytes")


def skip_tags(buffer: Buffer, position: int) -> int:
    """Return the position after unknown tagged fields."""
    count, position = read_varint(buffer, position)
    end = len(buffer)
    for _ in range(count):
        _, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        position += size
        if position > end:
            bad_length("tagged field", size, end - position + size)
    return position


def bad_length(field: str, length: int, left: int) -> NoReturn:
    """Raise for an invalid length or count."""
    if length < 0:
        raise DecodeError(f"{field}: null or negative length")
    raise DecodeError(f"{field}: length {length}, but {left} bytes are left")


def read_compact_string(buffer: Buffer, position: int, first: int, field: str, nullable: bool) -> tuple[Any, int]:
    """Return a string and the next position; `first` is the byte before `position`."""
    length = first
    if first > 127:
        length, position = read_varint(buffer, position - 1)
    if length == 0 and nullable:
        return None, position
    return read_string(buffer, position, length - 1, field)


def read_string(buffer: Buffer, position: int, length: int, field: str) -> tuple[str, int]:
    """Return a string and the next position."""
    stop = position + length
    if length < 0 or stop > len(buffer):
        bad_length(field, length, len(buffer) - position)
    return str(buffer[position:stop], "utf-8"), stop


def too_many(field: str, surplus: int) -> NoReturn:
    """Raise for too many array elements."""
    raise DecodeError(f"{field}: {surplus} more elements than a message may have")


def bad_tag(field: str, stop: int, position: int) -> NoReturn:
    """Raise for a tagged field with a wrong size."""
    raise DecodeError(f"{field}: tagged field is {stop - position} bytes longer than its value")


@cache
def packer(layout: str) -> Callable[..., bytes]:
    """Return `pack` of a big-endian struct."""
    return struct.Struct(">" + layout).pack


@cache
def unpacker(layout: str) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """Return `unpack_from` of a big-endian struct."""
    return struct.Struct(">" + layout).unpack_from


@lru_cache(maxsize=4096)
def to_uuid(raw: bytes) -> UUID:
    """Return a UUID, cached, as topic ids repeat."""
    return UUID(bytes=raw)


SHORT: Final = 64
"""Shorter strings are read by a precompiled struct, which is faster than a slice."""

PLAIN_STRINGS: Final = tuple(unpacker(f"{length}s") for length in range(SHORT))
"""By length."""

COMPACT_STRINGS: Final = (PLAIN_STRINGS[0], *PLAIN_STRINGS)
"""By length plus one. The first is null and never used."""


class NumberArrays:
    """Number arrays of one type."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._compact = [packer(f"B{n}{code}") for n in range(SMALL)]
        self._plain = [packer(f"i{n}{code}") for n in range(SMALL)]
        self._read = [unpacker(f"{n}{code}") for n in range(SMALL)]

    def compact(self, values: Sequence[Any]) -> bytes:
        """Return count plus one as a varint, and the elements."""
        count = len(values)
        if count < SMALL:
            return self._compact[count](count + 1, *values)
        return varint(count + 1) + struct.pack(f">{count}{self._code}", *values)

    def plain(self, values: Sequence[Any]) -> bytes:
        """Return the count as int32, and the elements."""
        count = len(values)
        if count < SMALL:
            return self._plain[count](count, *values)
        return struct.pack(f">i{count}{self._code}", count, *values)

    def read(self, buffer: Buffer, position: int, count: int) -> list[Any]:
        """Read elements; the caller has checked the length."""
        if count < SMALL:
            return list(self._read[count](buffer, position))
        return list(struct.unpack_from(f">{count}{self._code}", buffer, position))


@cache
def number_arrays(code: str) -> NumberArrays:
    """Return the arrays of a `struct` format character."""
    return NumberArrays(code)
