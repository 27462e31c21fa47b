"""Clean record batches for log compaction: keep the last record of each key.

A pass first adds the batches below its bound to an offset map, and then cleans batches in the order of their offsets.
Both functions take pieces of a log: about 1 MiB of stored batches, which are complete and have their base offsets.

- A record survives if the map has no higher offset for its key. Records without key do not survive.
- The first pass over a tombstone, a record without value, sets the delete horizon of its batch (KIP-534). It is an
  attribute and the base timestamp: the time from which a later pass removes the tombstone. Without its key in the map
  it gets none, and stays: older records of the key may exist.
- Batches of aborted transactions are removed at once. A marker gets a horizon when its transaction has no data left.
- What survives keeps its bytes, offsets and times. The batch keeps base offset, last offset delta, producer and codec.
- A batch that cannot be read is kept, and its keys are not added.
- Small neighbors are merged if that is wanted; see `fallback.merging`. A merged batch has no producer.

A batch with a new horizon can be larger than before, by up to 9 bytes per record.
"""

from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from headrace.records import accelerator
from headrace.records.accelerator import OffsetMap
from headrace.records.batch import ATTRIBUTES_AT, PRODUCER_AT, BatchHeader, read_header, sign
from headrace.records.compression import LIMIT, compress, decompress
from headrace.records.errors import BatchError, CorruptBatch
from headrace.records.fallback.cleaning import FEWEST_SLOTS, HORIZON, SLOT_BYTES
from headrace.records.fallback.header import HEADER_SIZE, Buffer
from headrace.records.markers import parse_marker

_MOST_DECOMPRESSED: Final = 8 << 20
"""Bytes of decompressed records after which a piece is processed in parts."""
_FEWEST_MERGED: Final = 4
_MAX_INT64: Final = 2**63 - 1
_LENGTH_AT, _BASE_TIMESTAMP_AT = 8, 27
_CODEC, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_INT64 = Struct(">q")
_UINT32 = Struct(">I")


class Added(NamedTuple):
    """Batches whose keys are in an offset map."""

    stopped_at: int | None
    """Base offset of the first batch that is not completely in the map, which is full. The pass must end before it."""
    unreadable: int
    """Number of batches that cannot be read."""


class Cleaned(NamedTuple):
    """What remains of batches. A marker is a record."""

    batches: list[bytes | None]
    """In the order of the given ones. An unchanged one is the same object.

    None is a removed one, or one that was merged into an earlier one.
    """
    records_read: int
    """Without those of unreadable batches, as for `records_kept`."""
    records_kept: int
    bytes_read: int
    bytes_kept: int
    tombstones: int
    """Number of tombstones that were kept."""
    earliest_horizon_ms: int | None
    """Time from which a tombstone or marker among these may be removed. None: there is none with a horizon."""
    unreadable: int
    """Number of batches that cannot be read, and were kept."""
    removed_aborts: list[int]
    """Offsets of removed abort markers.

    A client skips all records of a producer from the first offset of an aborted transaction to its marker. Stop listing
    the transactions of these markers before readers miss the markers.
    """


def open_offset_map(records: int, most_bytes: int, seed: bytes) -> OffsetMap:
    """Return a map for the keys of up to `records` records, of at most `most_bytes` bytes.

    The seed has 16 bytes. It should be random, because producers choose the keys.

    Raises:
        ValueError: a seed of another length.
        MemoryError: the memory is not available.
    """
    wanted = max(records, 0) * 10 // 9 + FEWEST_SLOTS
    return accelerator.open_offset_map(max(FEWEST_SLOTS, min(wanted, most_bytes // SLOT_BYTES)), seed)


def add_batches(
    offset_map: OffsetMap, batches: Sequence[bytes], aborted: Collection[int] = (), *, limit: int = LIMIT
) -> Added:
    """Add the keys of batches in the order of their offsets. Control batches have none.

    The map accepts the first keys of a batch that does not fit. A pass is correct with any part of the keys. A batch
    that alone fills an empty map counts as added, so that passes make progress. Its tombstones stay.

    Args:
        offset_map: The map.
        batches: Stored batches.
        aborted: Indexes of batches of aborted transactions.
        limit: Maximum bytes of a batch's decompressed records. A larger batch is unreadable.
    """
    passed_over = _flags(len(batches), aborted)
    unreadable = 0
    for start, stop, sections in _parts(batches, passed_over, limit):
        end, unread = offset_map.add(list(batches[start:stop]), sections, passed_over[start:stop])
        unreadable += len(unread)
        if end < stop - start:
            return Added(_INT64.unpack_from(batches[start + end])[0], unreadable)
    return Added(None, unreadable)


def clean(
    batches: Sequence[bytes],
    offset_map: OffsetMap,
    *,
    aborted: Collection[int] = (),
    producers_with_data: set[int],
    now_ms: int,
    delete_retention_ms: int,
    clean_segment: bool,
    limit: int = LIMIT,
    merged_bytes: int = 0,
) -> Cleaned:
    """Return what remains of batches.

    Args:
        batches: Stored batches in the order of their offsets.
        offset_map: The keys of the pass.
        aborted: Indexes of batches of aborted transactions.
        producers_with_data: IDs of producers with data of a transaction before these batches. Use one set for a whole
            pass, as this function updates it. Without the beginning of the log, it has all producers of transactions
            that may have data there.
        now_ms: The time.
        delete_retention_ms: `delete.retention.ms` of the topic.
        clean_segment: Whether an earlier pass wrote the batches. Only then their horizons count, because a client can
            set the attribute.
        limit: Maximum bytes of a batch's decompressed records. A larger batch is unreadable.
        merged_bytes: Maximum bytes of the decompressed records of a merged batch. 0: none are merged. Those of a clean
            segment are merged if half of them go, and at least 4, so that a pass does not write for a small gain.
    """
    horizon_ms = min(now_ms + delete_retention_ms, _MAX_INT64)
    flags = _flags(len(batches), aborted)
    kept: list[bytes | None] = []
    records_read = records_kept = tombstones = 0
    unreadable: set[int] = set()
    horizons: list[int] = []
    for start, stop, sections in _parts(batches, flags, limit):
        part = offset_map.clean(
            list(batches[start:stop]), sections, flags[start:stop], now_ms, horizon_ms, clean_segment
        )
        made, read, remaining, tombs, earliest, unread = part
        if merged_bytes:
            made = _merge(made, batches[start:stop], sections, merged_bytes, worthwhile=clean_segment)
        kept += made
        records_read += read
        records_kept += remaining
        tombstones += tombs
        unreadable.update(start + index for index in unread)
        if earliest is not None:
            horizons.append(earliest)
        for index, section in enumerate(sections, start):
            changed = kept[index]
            if section is not None and changed is not None and changed is not batches[index]:
                kept[index] = _compressed(changed)
    markers = _Markers(producers_with_data, now_ms, horizon_ms, clean_segment)
    if any(_attributes(batch) & (_TRANSACTIONAL | _CONTROL) for batch in batches):
        markers.clean(batches, kept, unreadable)
    if markers.earliest is not None:
        horizons.append(markers.earliest)
    return Cleaned(
        kept,
        records_read + markers.read,
        records_kept + markers.kept,
        sum(map(len, batches)),
        sum(len(batch) for batch in kept if batch is not None),
        tombstones,
        min(horizons, default=None),
        len(unreadable),
        markers.removed_aborts,
    )


def _merge(
    cleaned: list[bytes | None],
    batches: Sequence[bytes],
    sections: Sequence[Buffer | None],
    most: int,
    *,
    worthwhile: bool,
) -> list[bytes | None]:
    """Merge what remains of batches. `worthwhile`: only if many of them go.

    Markers have not been removed yet, so that no batch reaches beyond one.
    """
    places: list[int] = []
    left: list[bytes] = []
    plain: list[Buffer | None] = []
    for place, (batch, original, section) in enumerate(zip(cleaned, batches, sections, strict=True)):
        if batch is not None:
            places.append(place)
            left.append(batch)
            # Changed batches have plain records.
            plain.append(section if section is None or batch is original else memoryview(batch)[HEADER_SIZE:])
    merged = accelerator.merge(left, plain, most)
    if worthwhile and merged.count(None) < max(_FEWEST_MERGED, len(merged) / 2):
        return cleaned
    found: list[bytes | None] = [None] * len(cleaned)
    for place, batch in zip(places, merged, strict=True):
        found[place] = batch
    return found


class _Markers:
    """Decides which markers stay."""

    def __init__(self, with_data: set[int], now_ms: int, horizon_ms: int, clean_segment: bool) -> None:
        self._with_data = with_data
        self._now_ms = now_ms
        self._horizon_ms = horizon_ms
        self._clean_segment = clean_segment
        self.read = 0
        self.kept = 0
        self.earliest: int | None = None
        self.removed_aborts: list[int] = []

    def clean(self, batches: Sequence[bytes], kept: list[bytes | None], unreadable: Collection[int]) -> None:
        """Replace markers in `kept`, the batches that remain."""
        for index, batch in enumerate(batches):
            attributes = _attributes(batch)
            if not attributes & (_TRANSACTIONAL | _CONTROL) or len(batch) < HEADER_SIZE:
                continue
            if index in unreadable or not attributes & _CONTROL:
                if kept[index] is not None:
                    self._with_data.add(_INT64.unpack_from(batch, PRODUCER_AT)[0])
            else:
                kept[index] = self._remaining(batch)

    def _remaining(self, batch: bytes) -> bytes | None:
        header = read_header(batch[:HEADER_SIZE])
        try:
            marker = parse_marker(batch)
        except CorruptBatch:
            return batch
        self.read += 1
        had_data = marker.producer_id in self._with_data
        self._with_data.discard(marker.producer_id)
        if not had_data and self._is_due(header):
            if not marker.commit:
                self.removed_aborts.append(header.base_offset)
            return None
        self.kept += 1
        return batch if had_data else self._with_horizon(header, batch)

    def _is_due(self, header: BatchHeader) -> bool:
        return self._clean_segment and bool(header.attributes & HORIZON) and self._now_ms >= header.base_timestamp

    def _with_horizon(self, header: BatchHeader, batch: bytes) -> bytes:
        if self._clean_segment and header.attributes & HORIZON:
            horizon_ms = header.base_timestamp
        else:
            horizon_ms = self._horizon_ms
            batch = _with_horizon(batch, horizon_ms)
        self.earliest = horizon_ms if self.earliest is None else min(self.earliest, horizon_ms)
        return batch


def _with_horizon(marker: bytes, horizon_ms: int) -> bytes:
    """Set the horizon of a marker. Its record is not changed, as readers of markers rely on its layout.

    The time of a marker is the max timestamp of its batch.
    """
    made = bytearray(marker)
    made[ATTRIBUTES_AT + 1] |= HORIZON
    _INT64.pack_into(made, _BASE_TIMESTAMP_AT, horizon_ms)
    sign(made)
    return bytes(made)


def _compressed(batch: bytes) -> bytes:
    """Compress the plain records of a batch as its attributes say."""
    made = bytearray(batch[:HEADER_SIZE])
    made += compress(_attributes(batch) & _CODEC, memoryview(batch)[HEADER_SIZE:])
    _UINT32.pack_into(made, _LENGTH_AT, len(made) - _LENGTH_AT - _UINT32.size)
    sign(made)
    return bytes(made)


def _attributes(batch: bytes) -> int:
    """Return the lower byte of the attributes, 0 if there is none."""
    return batch[ATTRIBUTES_AT + 1] if len(batch) > ATTRIBUTES_AT + 1 else 0


def _flags(count: int, indexes: Collection[int]) -> bytes:
    flags = bytearray(count)
    for index in indexes:
        flags[index] = 1
    return bytes(flags)


def _parts(batches: Sequence[bytes], passed_over: bytes, limit: int) -> Iterator[tuple[int, int, list[Buffer | None]]]:
    """Yield ranges of batches with their decompressed records, which have bounded memory.

    There is None for a batch without compression, that is passed over, or that cannot be decompressed.
    """
    sections: list[Buffer | None] = []
    start = size = 0
    for index, batch in enumerate(batches):
        codec = _attributes(batch) & _CODEC
        section: Buffer | None = None
        if codec and not passed_over[index] and not _attributes(batch) & _CONTROL:
            try:
                section = decompress(codec, memoryview(batch)[HEADER_SIZE:], limit)
            except BatchError:
                section = None
            else:
                size += len(section)
        sections.append(section)
        if size >= _MOST_DECOMPRESSED:
            yield start, index + 1, sections
            sections, start, size = [], index + 1, 0
    if sections:
        yield start, len(batches), sections
