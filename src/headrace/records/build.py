"""Build record batches from records."""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from headrace.records import accelerator
from headrace.records.batch import SEQUENCES, sign
from headrace.records.compression import compress
from headrace.records.fallback.encode import ArrowColumn, ArrowHeaders, ArrowNumbers, Fields
from headrace.records.fallback.header import HEADER_SIZE

_HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct("=q")
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CODEC = 0x07


def build(
    records: Iterable[Fields],
    *,
    codec: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Return a writable batch with records at consecutive offsets.

    Raises:
        ValueError: there are no records.
        UnknownCodec: no codec has that number.
        struct.error: a number does not fit its field.
    """
    records = list(records)
    if not records:
        raise ValueError("a record batch has at least one record")
    base_timestamp = records[0][2]
    return _batch(
        accelerator.encode(records, base_timestamp),
        len(records),
        base_timestamp,
        max(record[2] for record in records),
        codec | (_TRANSACTIONAL if transactional else 0),
        (base_offset, leader_epoch),
        (producer_id, producer_epoch, base_sequence),
    )


_MAX_DELTA = 2**31 - 1


def build_empty(first_offset: int, next_offset: int) -> bytes:
    """Return a batch without records that ends before `next_offset`, as Kafka's compaction creates.

    It starts as close to `first_offset` as possible.
    """
    base_offset = max(first_offset, next_offset - 1 - _MAX_DELTA)
    batch = bytearray(HEADER_SIZE)
    last_delta = next_offset - 1 - base_offset
    _HEADER.pack_into(batch, 0, base_offset, HEADER_SIZE - 12, 0, 2, 0, 0, last_delta, -1, -1, -1, -1, -1, 0)
    sign(batch)
    return bytes(batch)


def build_columns(
    key: ArrowColumn | None,
    value: ArrowColumn | None,
    rows: int,
    timestamp: int,
    *,
    codec: int = 0,
    max_bytes: int,
    transaction: tuple[int, int, int] | None = None,
) -> Iterator[bytearray]:
    """Yield batches of two Arrow columns (None: all null) without headers, with no Python object per record.

    `max_bytes` limits a batch's uncompressed records, unless a single one is larger. `transaction` is the producer's
    ID and epoch, and the sequence number of the first row.
    """
    row = 0
    attributes = codec if transaction is None else codec | _TRANSACTIONAL
    while row < rows:
        section, following = accelerator.encode_columns(key, value, row, rows, max_bytes)
        producer = (-1, -1, -1)
        if transaction is not None:
            producer = (*transaction[:2], (transaction[2] + row) % SEQUENCES)
        yield _batch(section, following - row, timestamp, timestamp, attributes, (0, -1), producer)
        row = following


class ArrowRows(NamedTuple):
    """Records as columns, with their offsets."""

    key: ArrowColumn | None
    value: ArrowColumn | None
    headers: ArrowHeaders | None
    offsets: ArrowNumbers
    """Ascending, with or without gaps."""
    timestamps: ArrowNumbers
    """Microseconds."""


def build_rows(
    rows: ArrowRows, start: int, stop: int, *, append_time: bool = False, max_bytes: int
) -> tuple[int, bytearray]:
    """Build a batch of rows with their offsets, times and headers, and return the next row and the batch.

    `append_time`: LogAppendTime, the same for all. `max_bytes`: see `build_columns`. Raises ValueError for inconsistent
    columns or offsets that are not ascending.
    """
    section = accelerator.encode_rows(*rows, start, stop, max_bytes)
    records, following, last_delta, base_timestamp, max_timestamp = section
    data, first = rows.offsets
    [base_offset] = _OFFSET.unpack_from(data, (first + start) * _OFFSET.size)
    return following, _batch(
        records,
        following - start,
        base_timestamp,
        max_timestamp,
        _APPEND_TIME if append_time else 0,
        (base_offset, -1),
        (-1, -1, -1),
        last_delta,
    )


def _batch(
    section: bytes,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    place: tuple[int, int],
    producer: tuple[int, int, int],
    last_delta: int | None = None,
) -> bytearray:
    compressed = compress(attributes & _CODEC, section)
    batch = bytearray(HEADER_SIZE + len(compressed))
    base_offset, leader_epoch = place
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - 12,
        leader_epoch,
        2,
        0,
        attributes,
        count - 1 if last_delta is None else last_delta,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    batch[HEADER_SIZE:] = compressed
    sign(batch)
    return batch
