"""A record batch made from records: for doors whose clients do not make batches themselves, for tests and benches."""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from headrace.records import native
from headrace.records.compression import compress
from headrace.records.plain import HEADER_SIZE
from headrace.records.plain_encode import Fields, Headers

_HEADER = Struct(">qiibIhiqqqhii")
_CRC_AT = 17
_CRC = Struct(">I")
_CRC_STARTS = 21
_TRANSACTIONAL = 0x10


class NewRecord(NamedTuple):
    """A record to be written; any tuple of these four will do."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    """Milliseconds since the epoch, -1 for none."""
    headers: Headers = ()


def build(
    records: Iterable[Fields],
    *,
    codec: int = 0,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """One batch with the records at consecutive offsets from `base_offset`; a bytearray, so it can be stamped.

    Raises:
        ValueError: there are no records.
        UnknownCodec: no codec has that number.
        struct.error: a number does not fit its field.
    """
    records = list(records)
    if not records:
        raise ValueError("a record batch has at least one record")
    base_timestamp = records[0][2]
    section = compress(codec, native.encode(records, base_timestamp), level)
    batch = bytearray(HEADER_SIZE + len(section))
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - 12,
        leader_epoch,
        2,
        0,
        codec | (_TRANSACTIONAL if transactional else 0),
        len(records) - 1,
        base_timestamp,
        max(record[2] for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch[HEADER_SIZE:] = section
    with memoryview(batch)[_CRC_STARTS:] as covered:
        _CRC.pack_into(batch, _CRC_AT, native.crc32c(covered))
    return batch
