"""Merging of small cleaned batches, in Python; see `records.cleaning`.

Neighbors become one batch if all of this holds:

- They have the same attributes and leader epoch. None is of a transaction or a marker.
- Their records together have at most the given size before the merge.
- With the times of the server (LogAppendTime), they have the same time. With a horizon, they have the same horizon.
- Offsets ascend, and the last one is at most 2^31 - 1 above the first.
- They can be read.

The producer is not kept. Nothing reads it in cleaned batches without a transaction: sequences are in snapshots.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from headrace.records.errors import BatchError
from headrace.records.fallback.cleaning import HORIZON, CleanableRecord, Sections, read_header, records
from headrace.records.fallback.encode import varint, wrap
from headrace.records.fallback.header import HEADER_SIZE, Buffer, HeaderFields, crc32c

LONGEST_MERGED: Final = 1 << 28
"""Upper limit of the size, in bytes."""

_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_AT, _CRC_STARTS = 17, 21
_LOG_APPEND, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_MAX_INT32 = 2**31 - 1
_NO_PRODUCER = (-1, -1, -1)


class _Member(NamedTuple):
    """A batch that may be merged with others."""

    header: HeaderFields
    section: Buffer
    records: list[CleanableRecord]

    @property
    def last_offset(self) -> int:
        """The last offset of the original batch."""
        return self.header[0] + self.header[6]


def merge(batches: Sequence[bytes], sections: Sections, most: int, /) -> list[bytes | None]:
    """Merge batches in the order of their offsets. The same object remains of one that is not merged.

    Args:
        batches: Stored batches.
        sections: Decompressed records of the compressed ones.
        most: Maximum bytes of the records of a merged batch, before the merge.

    Returns:
        The merged batch in the place of its first part, and None in the places of others. Its records are plain, with
        any codec.

    Raises:
        ValueError: `most` is negative or above 2^28, or there are not as many sections as batches.
    """
    if not 0 <= most <= LONGEST_MERGED:
        raise ValueError(f"merge: batches of 0 to {LONGEST_MERGED} bytes")
    members = [_member(batch, section) for batch, section in zip(batches, sections, strict=True)]
    merged: list[bytes | None] = []
    while len(merged) < len(batches):
        start = len(merged)
        found = _group(members, start, most)
        merged.append(_merged(found) if len(found) > 1 else batches[start])
        merged += [None] * (len(found) - 1)
    return merged


def _member(batch: bytes, section: Buffer | None) -> _Member | None:
    """Return a batch that may be merged; None: it stays as it is."""
    try:
        header = read_header(batch)
        if header[5] & (_TRANSACTIONAL | _CONTROL) or header[12] <= 0:
            return None
        found = records(header, batch, section)
    except BatchError:
        return None
    return _Member(header, batch[HEADER_SIZE:] if section is None else bytes(section), found)


def _group(members: Sequence[_Member | None], start: int, most: int) -> list[_Member]:
    """Return the batches that become one, from a place on. Empty for one that must stay."""
    first = members[start]
    if first is None:
        return []
    found, size = [first], len(first.section)
    for member in members[start + 1 :]:
        if member is None or not _fits(first, found[-1], member) or size + len(member.section) > most:
            break
        found.append(member)
        size += len(member.section)
    return found


def _fits(first: _Member, previous: _Member, following: _Member) -> bool:
    one, other = first.header, following.header
    return (
        (one[2], one[5]) == (other[2], other[5])
        and previous.last_offset < other[0]
        and following.last_offset - one[0] <= _MAX_INT32
        and (not one[5] & _LOG_APPEND or one[8] == other[8])
        and (not one[5] & HORIZON or one[7] == other[7])
    )


def _merged(members: list[_Member]) -> bytes:
    base_offset, base_timestamp, attributes = members[0].header[0], members[0].header[7], members[0].header[5]
    parts: list[Buffer] = []
    times: list[int] = []
    for header, section, found in members:
        for record in found:
            time = wrap(header[7] + record.timestamp_delta)
            times.append(time)
            offset = varint(header[0] + record.offset_delta - base_offset)
            deltas = varint(wrap(time - base_timestamp)) + offset
            rest = section[_skip_varint(section, record.timestamp_end) : record.end]
            parts.append(varint(1 + len(deltas) + len(rest)))
            parts.append(section[record.attributes_at : record.attributes_at + 1])
            parts += (deltas, rest)
    made = bytearray(HEADER_SIZE).join((b"", b"".join(parts)))
    _HEADER.pack_into(
        made,
        0,
        base_offset,
        len(made) - 12,
        *members[0].header[2:5],
        attributes,
        members[-1].last_offset - base_offset,
        base_timestamp,
        members[0].header[8] if attributes & _LOG_APPEND else max(times),
        *_NO_PRODUCER,
        len(times),
    )
    with memoryview(made)[_CRC_STARTS:] as covered:
        _CRC.pack_into(made, _CRC_AT, crc32c(covered))
    return bytes(made)


def _skip_varint(section: Buffer, at: int) -> int:
    """Return the end of a number of a valid record."""
    while section[at] & 128:
        at += 1
    return at + 1
