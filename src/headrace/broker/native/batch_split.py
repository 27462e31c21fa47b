"""Split a batch for storage that limits the records or bytes of a write."""

from collections.abc import Iterator
from typing import NamedTuple

from headrace.records import accelerator
from headrace.records.batch import log_append_time, peek
from headrace.records.build import build
from headrace.records.fallback.header import Buffer
from headrace.records.walk import Record, fixed_timestamp, payload

MOST_RECORDS = 4096
MOST_BYTES = 8 << 20
MOST_HEADERS = 20_000
"""Maximum headers of a piece, unless a single record has more."""
_ALL_HEADERS = (1 << 31) - 1
_HEADER_BYTES = 16
_AS_TEXT = 8
"""Native topics store headers as JSON, in which a byte may take six."""


class Piece(NamedTuple):
    """Records of a batch as a separate, uncompressed batch."""

    batch: bytearray
    offsets: list[int]
    """Original offsets of its records."""
    newest: int
    """Largest timestamp in ms."""


def pieces(batch: Buffer, base_offset: int, first_offset: int) -> Iterator[Piece]:
    """Yield the records of a batch from `first_offset` in pieces. Other threads can run in between.

    Memory holds the decompressed batch and one piece. The batch may have any stamp. A control batch yields nothing.

    Raises:
        BatchError: the batch cannot be read. Earlier pieces were yielded.
    """
    header = peek(batch)
    if header.is_control:
        return
    section, fixed = memoryview(payload(header, batch)), fixed_timestamp(header)
    count = header.count
    at, end = max(base_offset, first_offset), base_offset + header.span
    while at < end:
        found, at, read, count = accelerator.some(
            Record,
            section,
            count,
            header.last_offset_delta,
            base_offset,
            header.base_timestamp,
            fixed,
            at,
            b"",
            MOST_RECORDS,
            MOST_BYTES,
            _ALL_HEADERS,
        )
        section = section[read:]
        for some in _split([record for record, _ in found]):
            yield _piece(some, append_time=fixed is not None)


def _split(records: list[Record]) -> Iterator[list[Record]]:
    some: list[Record] = []
    size = headers = 0
    for record in records:
        weight = _weight(record)
        if some and (size + weight > MOST_BYTES or headers + len(record.headers) > MOST_HEADERS):
            yield some
            some, size, headers = [], 0, 0
        some.append(record)
        size += weight
        headers += len(record.headers)
    if some:
        yield some


def _weight(record: Record) -> int:
    headers = sum(_HEADER_BYTES + _AS_TEXT * (len(name) + len(value or b"")) for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _piece(some: list[Record], *, append_time: bool) -> Piece:
    batch = build((each.key, each.value, each.timestamp, each.headers) for each in some)
    newest = max(each.timestamp for each in some)
    if append_time:
        log_append_time(batch, newest)
    return Piece(batch, [each.offset for each in some], newest)
