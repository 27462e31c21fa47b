"""Check, read and stamp batch headers (Kafka's format v2).

The CRC does not cover base offset and leader epoch, so stamping needs no new CRC.
"""

from struct import Struct
from typing import NamedTuple

from headrace.records import accelerator
from headrace.records.errors import CorruptBatch
from headrace.records.fallback.header import HEADER_SIZE, Buffer, fields

CRC_AT = 17
ATTRIBUTES_AT = 21
"""Also the first byte that the CRC covers."""
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43
SEQUENCES = 2**31
"""Sequence numbers continue with 0 after this many."""

_OFFSET = Struct(">q")
_UINT32 = Struct(">I")
_INT16 = Struct(">h")
_PRODUCER = Struct(">qhi")
_LOG_APPEND = 0x08
_make = tuple.__new__


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, in wire order. Timestamps are milliseconds, -1 for none."""

    base_offset: int
    batch_length: int
    """Bytes after this field: the batch size minus 12."""
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name; hides tuple.count()

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & 7

    @property
    def timestamp_type(self) -> int:
        """0 for CreateTime, 1 for LogAppendTime."""
        return self.attributes >> 3 & 1

    @property
    def is_transactional(self) -> bool:
        """Part of a transaction."""
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        """A transaction marker."""
        return bool(self.attributes & 0x20)

    @property
    def span(self) -> int:
        """Number of offsets."""
        return self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + 12


def check(batch: Buffer) -> BatchHeader:
    """Return the header of exactly one batch from a client, with a valid CRC; do not check the records.

    Sequence and epoch are checked only with a producer id, as some clients send 0 without one.

    Raises:
        UnsupportedMagic: a message set of magic 0 or 1.
        CorruptBatch: missing bytes, an impossible length or a wrong CRC.
        InvalidBatch: bytes after the batch, wrong counts, a control bit, or inconsistent producer fields.
        UnknownCodec: compression 5 to 7.
    """
    return _make(BatchHeader, accelerator.check(batch))


def check_stored(batch: Buffer) -> BatchHeader:
    """Return the header of exactly one batch that was accepted before, with a valid CRC. It may be a marker.

    Raises:
        UnsupportedMagic: a message set of magic 0 or 1.
        CorruptBatch: missing bytes, an impossible length or a wrong CRC.
        InvalidBatch: bytes after the batch.
    """
    header = peek(batch)
    with memoryview(batch)[ATTRIBUTES_AT:] as covered:
        found = accelerator.crc32c(covered)
    if header.crc != found:
        raise CorruptBatch(f"CRC {header.crc:#010x} in the header, {found:#010x} over the bytes")
    return header


def peek(batch: Buffer) -> BatchHeader:
    """Return the header of one batch without a check of CRC and counts. Raises as `check`."""
    return _make(BatchHeader, accelerator.peek(batch))


def read_header(header: Buffer) -> BatchHeader:
    """Return a header from its 61 bytes, unchecked."""
    return BatchHeader(*fields(header))


def log_append_time(batch: bytearray | memoryview, timestamp: int) -> None:
    """Set the broker's timestamp (ms) for all records of a batch, and update the CRC. Readers ignore the deltas."""
    attributes = _INT16.unpack_from(batch, ATTRIBUTES_AT)[0]
    _INT16.pack_into(batch, ATTRIBUTES_AT, attributes | _LOG_APPEND)
    _OFFSET.pack_into(batch, MAX_TIMESTAMP_AT, timestamp)
    sign(batch)


def number(batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Set producer id, epoch and first sequence of a batch, and update the CRC."""
    _PRODUCER.pack_into(batch, PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    sign(batch)


def sign(batch: bytearray | memoryview) -> None:
    """Set the CRC of a batch."""
    with memoryview(batch)[ATTRIBUTES_AT:] as covered:
        _UINT32.pack_into(batch, CRC_AT, accelerator.crc32c(covered))


__all__ = [
    "HEADER_SIZE",
    "BatchHeader",
    "Buffer",
    "check",
    "check_stored",
    "log_append_time",
    "number",
    "peek",
    "read_header",
    "sign",
]
