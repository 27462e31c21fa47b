"""Native topics as Spark reads them: plain Redis Streams, an entry per record, offsets with gaps."""

from collections.abc import Iterator
from typing import Any, Final

from headrace.client.offsets import Extent, Range
from headrace.records import streams
from headrace.storage.layout import native
from headrace.storage.layout.keys import state_of
from headrace.storage.redis.clients import stream_entries

_ENTRIES: Final = 1_000
_BATCH_BYTES: Final = 4 << 20


def extent(redis: Any, stream: str, bits: int) -> Extent:
    """Where a partition's log starts and ends."""
    info = native.StreamInfo()
    if redis.exists(stream):
        facts = redis.xinfo_stream(stream)
        info = native.StreamInfo(
            length=facts["length"],
            last_id=_bytes(facts["last-generated-id"]),
            first_id=_bytes(facts.get("recorded-first-entry-id", b"0-0")),
            added=facts.get("entries-added", facts["length"]),
        )
    state = native.State.read(redis.hmget(state_of(stream), native.STATE_FIELDS))
    return Extent(*native.extent(info, state, bits))


def batches(redis: Any, stream: str, bits: int, offsets: Range) -> Iterator[tuple[int, bytes]]:
    """Base offset and bytes of record batches made of the entries in a range."""
    for entries in _entries(redis, stream, bits, offsets.start, offsets.end):
        for base, _, batch in streams.build_batches(entries, bits, _BATCH_BYTES)[0]:
            yield base, batch


def first_from(redis: Any, stream: str, bits: int, start: int, end: int) -> int:
    """The offset of the first entry in a range, `end` when there is none: cutting a gap in pieces helps nobody."""
    last = native.id_before(end, bits)
    found = stream_entries(redis, stream, native.id_of(start, bits), last, 1) if end > start else []
    return native.offset_at(found[0][0], bits) if found else end


def offset_at_time(timestamp: int, bits: int, log: Extent) -> int | None:
    """The first offset of an entry that is not older than `timestamp` (ms): entry ids are times; None when all are."""
    offset = max(timestamp, 0) << bits
    return None if offset >= log.end else max(offset, log.start)


def end_after(redis: Any, stream: str, bits: int, start: int, end: int, rows: int) -> int:
    """The offset behind the `rows`-th entry of a range, `end` when there are not so many."""
    for entries in _entries(redis, stream, bits, start, end):
        if len(entries) >= rows:
            return min(end, native.offset_after(entries[rows - 1][0], bits))
        rows -= len(entries)
    return end


def _entries(redis: Any, stream: str, bits: int, start: int, end: int) -> Iterator[list[Any]]:
    last = native.id_before(end, bits)
    while start < end:
        found = stream_entries(redis, stream, native.id_of(start, bits), last, _ENTRIES)
        if found:
            yield found
        if len(found) < _ENTRIES:
            return
        start = native.offset_after(found[-1][0], bits)


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
