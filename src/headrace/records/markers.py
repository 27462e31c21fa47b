"""Build and parse transaction markers: control batches with one record (KIP-98).

The record's key has a version and the type. Its value has a version and the coordinator epoch, where Headrace writes
the number of the transaction.
"""

from struct import Struct, error
from typing import Final, NamedTuple

from headrace.records.batch import sign
from headrace.records.errors import CorruptBatch
from headrace.records.fallback.header import HEADER_SIZE, Buffer, fields

MARKER_SIZE: Final = 78
"""Bytes of a marker from `build_marker`."""
NUMBERS: Final = 2**31
"""Numbers of transactions wrap to 0 here."""
UNNUMBERED: Final = -1
"""Number of a marker that no coordinator ordered."""

_HEADER = Struct(">qiibIhiqqqhii")
_RECORD = Struct(">bbbbbhhbhib")
"""Length, attributes, both deltas, key length, key version, type, value length, value version, epoch, header count.

All varints are one byte long: zigzag of a small number.
"""
_KEY_AND_VALUE = Struct(">xxxxbhhbhi")
_RECORD_LENGTH, _KEY_LENGTH, _VALUE_LENGTH = 32, 8, 12
"""16, 4 and 6 as varints."""
_ATTRIBUTES: Final = 0x30
"""Transactional, control."""
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """The end of a transaction in a log."""

    producer_id: int
    producer_epoch: int
    commit: bool
    number: int
    """Number of the transaction modulo `NUMBERS`, or `UNNUMBERED`."""


def build_marker(marker: Marker, timestamp: int) -> bytearray:
    """Return the control batch of a marker, with a timestamp in ms and without its offset.

    Raises:
        struct.error: a number does not fit its field.
    """
    batch = bytearray(MARKER_SIZE)
    _HEADER.pack_into(
        batch,
        0,
        0,
        MARKER_SIZE - 12,
        -1,
        2,
        0,
        _ATTRIBUTES,
        0,
        timestamp,
        timestamp,
        marker.producer_id,
        marker.producer_epoch,
        -1,
        1,
    )
    _RECORD.pack_into(
        batch,
        HEADER_SIZE,
        _RECORD_LENGTH,
        0,
        0,
        0,
        _KEY_LENGTH,
        0,
        _COMMIT if marker.commit else _ABORT,
        _VALUE_LENGTH,
        0,
        marker.number,
        0,
    )
    sign(batch)
    return batch


def parse_marker(start: Buffer) -> Marker:
    """Return the marker of a control batch, of which `MARKER_SIZE` bytes are enough.

    Raises:
        CorruptBatch: it is not a marker, or not one of the same layout.
    """
    header = fields(start)
    try:
        _, key_version, kind, _, value_version, number = _parts(start)
    except error:
        raise CorruptBatch(f"{len(start)} bytes are no transaction marker") from None
    if not header[5] & 0x20 or kind not in {_ABORT, _COMMIT} or key_version < 0 or value_version < 0:
        raise CorruptBatch(f"a control record of type {kind} is no transaction marker")
    return Marker(header[9], header[10], kind == _COMMIT, number)


def _parts(start: Buffer) -> tuple[int, int, int, int, int, int]:
    found: tuple[int, int, int, int, int, int] = _KEY_AND_VALUE.unpack_from(start, HEADER_SIZE)
    if found[0] != _KEY_LENGTH or found[3] != _VALUE_LENGTH:
        raise error
    return found


def is_later(number: int, than: int) -> bool:
    """Whether a transaction has a higher number than another, with wrapping."""
    return 0 < (number - than) % NUMBERS < NUMBERS // 2
