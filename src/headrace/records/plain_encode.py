"""The records section of a batch written in Python; `_native.encode` writes the same bytes."""

from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]]
Fields = tuple[bytes | None, bytes | None, int, Headers]
"""A record to be written: key, value, timestamp (ms), headers."""

_SHORT = tuple(bytes([number]) for number in range(128))


def _varint(number: int) -> bytes:
    """A zigzag varint of up to 64 bits."""
    number = number << 1 ^ number >> 63
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _wrap(number: int) -> int:
    """The number as Java's long would hold it; readers add it to the base timestamp wrapping too."""
    return (number + 2**63) % 2**64 - 2**63


def _check_int64(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} does not fit 64 bits")
    return number


_NULL = _varint(-1)


def encode(records: Sequence[Fields], base_timestamp: int, /) -> bytes:
    """The records (key, value, timestamp in ms, headers) with offset deltas from 0."""
    _check_int64(base_timestamp)
    out: list[bytes] = []
    for offset_delta, (key, value, timestamp, headers) in enumerate(records):
        parts = [b"\x00", _varint(_wrap(_check_int64(timestamp) - base_timestamp)), _varint(offset_delta)]
        parts += (_NULL,) if key is None else (_varint(len(key)), key)
        parts += (_NULL,) if value is None else (_varint(len(value)), value)
        parts.append(_varint(len(headers)))
        for name, content in headers:
            text = name.encode()
            parts += (_varint(len(text)), text)
            parts += (_NULL,) if content is None else (_varint(len(content)), content)
        body = b"".join(parts)
        out += (_varint(len(body)), body)
    return b"".join(out)
