"""What generated encoders and decoders call: variable-length integers, number arrays, tagged fields, UUIDs."""

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NoReturn
from uuid import UUID

from headrace.protocol.errors import DecodeError

Buffer = bytes | bytearray | memoryview

SMALL: Final = 16
"""Number arrays shorter than this have a precompiled struct: replica lists, partition lists."""


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_VARINTS: Final = [_encode_varint(value) for value in range(2048)]


def varint(value: int) -> bytes:
    """An unsigned integer in groups of seven bits, lowest first."""
    return _VARINTS[value] if 0 <= value < 2048 else _encode_varint(value)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """The unsigned integer at `position` and the position after it; IndexError when it is cut short."""
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
    """The position after a section of tagged fields none of which is known; `position` is that of their count."""
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
    """Refuse a length or count that is negative or more than the message has left."""
    if length < 0:
        raise DecodeError(f"{field}: null or negative length")
    raise DecodeError(f"{field}: length {length}, but {left} bytes are left")


def read_compact_string(buffer: Buffer, position: int, first: int, field: str, nullable: bool) -> tuple[Any, int]:
    """A string and the position after it; `first` is the length's first byte, just before `position`."""
    length = first
    if first > 127:
        length, position = read_varint(buffer, position - 1)
    if length == 0 and nullable:
        return None, position
    return read_string(buffer, position, length - 1, field)


def read_string(buffer: Buffer, position: int, length: int, field: str) -> tuple[str, int]:
    """A string of `length` bytes and the position after it."""
    stop = position + length
    if length < 0 or stop > len(buffer):
        bad_length(field, length, len(buffer) - position)
    return str(buffer[position:stop], "utf-8"), stop


def too_many(field: str, surplus: int) -> NoReturn:
    """Refuse a message whose arrays have more elements than it may have."""
    raise DecodeError(f"{field}: {surplus} more elements than a message may have")


def bad_tag(field: str, stop: int, position: int) -> NoReturn:
    """Refuse a tagged field whose size is not that of its value."""
    raise DecodeError(f"{field}: tagged field is {stop - position} bytes longer than its value")


@cache
def packer(layout: str) -> Callable[..., bytes]:
    """The bound `pack` of a big-endian struct."""
    return struct.Struct(">" + layout).pack


@cache
def unpacker(layout: str) -> Callable[[Buffer, int], tuple[Any, ...]]:
    """The bound `unpack_from` of a big-endian struct."""
    return struct.Struct(">" + layout).unpack_from


@lru_cache(maxsize=4096)
def to_uuid(raw: bytes) -> UUID:
    """The UUID of 16 bytes. Remembered: making one costs a microsecond, and the same topic ids come again and again."""
    return UUID(bytes=raw)


SHORT: Final = 64
"""Strings shorter than this are read by a precompiled struct, which is faster than slicing a memoryview."""

PLAIN_STRINGS: Final = tuple(unpacker(f"{length}s") for length in range(SHORT))
"""By length."""

COMPACT_STRINGS: Final = (PLAIN_STRINGS[0], *PLAIN_STRINGS)
"""By length plus one. The first is never used: it would be null."""


class NumberArrays:
    """Writes and reads the elements of number arrays of one type, with their count in front when writing."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._compact = [packer(f"B{n}{code}") for n in range(SMALL)]
        self._plain = [packer(f"i{n}{code}") for n in range(SMALL)]
        self._read = [unpacker(f"{n}{code}") for n in range(SMALL)]

    def compact(self, values: Sequence[Any]) -> bytes:
        """Count plus one as a varint, then the elements."""
        count = len(values)
        if count < SMALL:
            return self._compact[count](count + 1, *values)
        return varint(count + 1) + struct.pack(f">{count}{self._code}", *values)

    def plain(self, values: Sequence[Any]) -> bytes:
        """Count as int32, then the elements."""
        count = len(values)
        if count < SMALL:
            return self._plain[count](count, *values)
        return struct.pack(f">i{count}{self._code}", count, *values)

    def read(self, buffer: Buffer, position: int, count: int) -> list[Any]:
        """`count` elements at `position`; the caller has checked that they are there."""
        if count < SMALL:
            return list(self._read[count](buffer, position))
        return list(struct.unpack_from(f">{count}{self._code}", buffer, position))


@cache
def number_arrays(code: str) -> NumberArrays:
    """The arrays of the numbers with this `struct` format character."""
    return NumberArrays(code)
