"""Offsets of keys, and what remains of batches, in Python; see `records.cleaning`."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from headrace.records.errors import BatchError, CorruptBatch
from headrace.records.fallback.encode import varint, wrap
from headrace.records.fallback.header import HEADER_SIZE, Buffer, HeaderFields, crc32c, peek

Sections = Sequence[Buffer | None]
CleanedSections = tuple[list[bytes | None], int, int, int, int | None, list[int]]
"""What remains of each batch (None: nothing), records read, records kept, tombstones kept, earliest horizon (ms), and
the indexes of batches that cannot be read."""

SLOT_BYTES: Final = 24
FEWEST_SLOTS: Final = 2
SEED_BYTES: Final = 16
HORIZON: Final = 0x40
"""Attribute bit of KIP-534: the base timestamp is the time from which tombstones and markers may be removed."""

_SLOT = Struct("=16sq")
_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_CRC_AT, _CRC_STARTS = 17, 21
_CODEC, _LOG_APPEND, _CONTROL = 0x07, 0x08, 0x20
_SHORTEST = 7
"""Bytes of a record: one per field."""
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class PureOffsetMap:
    """Open addressing in one buffer, with 24 bytes per slot. It is full at nine tenths."""

    def __init__(self, slots: int, seed: bytes) -> None:
        if slots < FEWEST_SLOTS or len(seed) != SEED_BYTES:
            raise ValueError(f"OffsetMap: {FEWEST_SLOTS} slots or more, and a seed of {SEED_BYTES} bytes")
        self._slots = slots
        self._seed = seed
        self._limit = slots * 9 // 10
        self._used = 0
        self._table = bytearray(slots * SLOT_BYTES)

    def __len__(self) -> int:
        return self._used

    @property
    def full(self) -> bool:
        """See `accelerator.OffsetMap`."""
        return self._used >= self._limit

    @property
    def memory_bytes(self) -> int:
        """See `accelerator.OffsetMap`."""
        return self._slots * SLOT_BYTES

    def get(self, key: bytes, /) -> int | None:
        """See `accelerator.OffsetMap`."""
        _, offset = self._find(self._hash(key))
        return None if offset < 0 else offset

    def add(self, batches: Sequence[bytes], sections: Sections, passed_over: bytes, /) -> tuple[int, list[int]]:
        """See `accelerator.OffsetMap`."""
        unreadable: list[int] = []
        for index, (batch, section, is_passed_over) in enumerate(zip(batches, sections, passed_over, strict=True)):
            if is_passed_over:
                continue
            if self.full:
                return index, unreadable
            try:
                header = read_header(batch)
                if header[5] & _CONTROL:
                    continue
                read = records(header, batch, section)
            except BatchError:
                unreadable.append(index)
                continue
            was_empty = not self._used
            for record in read:
                if record.key is not None and not self._put(record.key, header[0] + record.offset_delta):
                    if not was_empty:
                        return index, unreadable
                    break
        return len(batches), unreadable

    def clean(
        self,
        batches: Sequence[bytes],
        sections: Sections,
        aborted: bytes,
        now_ms: int,
        horizon_ms: int,
        clean_segment: bool,
        /,
    ) -> CleanedSections:
        """See `accelerator.OffsetMap`."""
        cleaned: list[bytes | None] = []
        unreadable: list[int] = []
        records_read = records_kept = tombstones = 0
        earliest: int | None = None
        for index, (batch, section, is_aborted) in enumerate(zip(batches, sections, aborted, strict=True)):
            try:
                header = read_header(batch)
                if header[5] & _CONTROL:
                    cleaned.append(batch)
                    continue
                if is_aborted:
                    cleaned.append(None)
                    records_read += max(header[12], 0)
                    continue
                horizon = header[7] if header[5] & HORIZON and clean_segment else None
                found = records(header, batch, section)
                kept = [each for each in found if self._survives(header, each, now_ms, horizon)]
                tombs = sum(each.tombstone for each in kept)
                unseen = horizon is None and not self._has_tombstones(header, kept)
                stamp = horizon_ms if tombs and horizon is None and not unseen else None
                # A client has set the attribute. Later passes would take it for that of a pass.
                forged = unseen and bool(header[5] & HORIZON)
                if not kept:
                    made: bytes | None = None
                elif len(kept) == len(found) and stamp is None and not forged:
                    made = batch
                else:
                    plain = memoryview(batch)[HEADER_SIZE:] if section is None else memoryview(section)
                    if horizon is None:
                        header = (*header[:5], header[5] & ~HORIZON, *header[6:])
                    made = _rewrite(header, plain, kept, stamp)
            except BatchError:
                cleaned.append(batch)
                unreadable.append(index)
                continue
            cleaned.append(made)
            records_read += len(found)
            records_kept += len(kept)
            tombstones += tombs
            due = horizon if stamp is None else stamp
            if tombs and due is not None:
                earliest = due if earliest is None else min(earliest, due)
        return cleaned, records_read, records_kept, tombstones, earliest, unreadable

    def _survives(self, header: HeaderFields, record: "CleanableRecord", now_ms: int, horizon: int | None) -> bool:
        if record.key is None or (record.tombstone and horizon is not None and now_ms >= horizon):
            return False
        _, offset = self._find(self._hash(record.key))
        return offset <= header[0] + record.offset_delta

    def _has_tombstones(self, header: HeaderFields, kept: "list[CleanableRecord]") -> bool:
        """Whether the map has all tombstones. Otherwise older records of their keys may still exist."""
        return all(
            record.key is not None and self.get(record.key) == header[0] + record.offset_delta
            for record in kept
            if record.tombstone
        )

    def _hash(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._seed).digest()

    def _find(self, digest: bytes) -> tuple[int, int]:
        """Return the slot's place, and its offset or -1 if it is empty."""
        slot = int.from_bytes(digest[:8], "little") % self._slots
        while True:
            place = slot * SLOT_BYTES
            known, following = _SLOT.unpack_from(self._table, place)
            if not following or known == digest:
                return place, following - 1
            slot = (slot + 1) % self._slots

    def _put(self, key: bytes, offset: int) -> bool:
        digest = self._hash(key)
        place, known = self._find(digest)
        if known < 0:
            if self.full:
                return False
            self._used += 1
        _SLOT.pack_into(self._table, place, digest, max(known, offset) + 1)
        return True


class CleanableRecord(NamedTuple):
    """Place and fields of a record in its section."""

    start: int
    attributes_at: int
    timestamp_end: int
    """Where the timestamp delta ends."""
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    tombstone: bool


def read_header(batch: bytes) -> HeaderFields:
    """Return the fields of a stored batch. Raises BatchError: also for a wrong CRC and impossible offsets."""
    header = peek(batch)
    if header[4] != crc32c(memoryview(batch)[_CRC_STARTS:]):
        raise CorruptBatch("the CRC differs")
    if header[0] < 0 or header[6] < 0 or header[0] >= _MAX_INT64 - header[6]:
        raise CorruptBatch(f"base offset {header[0]} with last offset delta {header[6]}")
    return header


def records(header: HeaderFields, batch: bytes, section: Buffer | None) -> list[CleanableRecord]:
    """Return the records of a batch, or of its decompressed section. Raises CorruptBatch."""
    if header[5] & _CODEC and section is None:
        raise CorruptBatch("the records are not decompressed")
    data = batch[HEADER_SIZE:] if section is None else bytes(section)
    if not 0 <= header[12] <= len(data) // _SHORTEST:
        raise CorruptBatch(f"{header[12]} records in {len(data)} bytes")
    return list(_walk(data, header[12], header[6]))


def _walk(data: bytes, count: int, last_offset_delta: int) -> Iterator[CleanableRecord]:
    at = 0
    previous = -1
    for _ in range(count):
        start = at
        size, at = _read_int32(data, at, len(data))
        attributes_at, end = at, at + size
        if size <= 0 or end > len(data):
            raise CorruptBatch("a record's length goes beyond the batch")
        timestamp_delta, at = _read_number(data, at + 1, end, 64)
        timestamp_end = at
        offset_delta, at = _read_int32(data, at, end)
        key, at = _read_bytes(data, at, end)
        value, at = _read_bytes(data, at, end)
        headers, at = _read_int32(data, at, end)
        if headers < 0:
            raise CorruptBatch("a negative number of headers")
        for _ in range(headers):
            name, at = _read_bytes(data, at, end)
            if name is None:
                raise CorruptBatch("a header without name")
            _, at = _read_bytes(data, at, end)
        if at != end or not previous < offset_delta <= last_offset_delta:
            raise CorruptBatch("bytes are left over in a record, or its offset is not in order")
        previous = offset_delta
        yield CleanableRecord(
            start, attributes_at, timestamp_end, end, timestamp_delta, offset_delta, key, value is None
        )
    if at != len(data):
        raise CorruptBatch("bytes after the last record")


def _read_number(data: bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    found = shift = 0
    while at < end and shift < bits:
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            if found >> bits:
                break
            return found >> 1 ^ -(found & 1), at
        shift += 7
    raise CorruptBatch("a number goes beyond the record")


def _read_int32(data: bytes, at: int, end: int) -> tuple[int, int]:
    return _read_number(data, at, end, 32)


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _read_int32(data, at, end)
    if size < 0:
        return None, at
    if size > end - at:
        raise CorruptBatch("a field goes beyond the record")
    return data[at : at + size], at + size


def _rewrite(header: HeaderFields, section: Buffer, kept: list[CleanableRecord], stamp: int | None) -> bytes:
    """Return a batch of some records, not compressed, with the base timestamp `stamp` if there is one.

    Raises:
        CorruptBatch: the result would be too large.
    """
    base = header[7]
    times = [wrap(base + record.timestamp_delta) for record in kept]
    attributes = header[5]
    parts: list[Buffer] = []
    if stamp is None:
        parts.extend(section[record.start : record.end] for record in kept)
    else:
        attributes |= HORIZON
        for record, time in zip(kept, times, strict=True):
            delta = varint(wrap(time - stamp))
            rest = section[record.timestamp_end : record.end]
            parts.append(varint(1 + len(delta) + len(rest)))
            parts.append(section[record.attributes_at : record.attributes_at + 1])
            parts += (delta, rest)
    made = bytearray(HEADER_SIZE).join((b"", b"".join(parts)))
    if len(made) > _MAX_INT32:
        raise CorruptBatch("the batch would be too large")
    _HEADER.pack_into(
        made,
        0,
        header[0],
        len(made) - 12,
        *header[2:5],
        attributes,
        header[6],
        base if stamp is None else stamp,
        header[8] if attributes & _LOG_APPEND else max(times),
        *header[9:12],
        len(kept),
    )
    with memoryview(made)[_CRC_STARTS:] as covered:
        _CRC.pack_into(made, _CRC_AT, crc32c(covered))
    return bytes(made)
