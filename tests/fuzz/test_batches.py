"""Any bytes as a batch or as its records give a result or a documented error, and C the one that Python gives."""

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.harness.mutation import bounded, mutated

from headrace.records import accelerator, cleaning, streams
from headrace.records.arrow import decode
from headrace.records.build import build
from headrace.records.compression import compress, decompress
from headrace.records.errors import BatchError, CorruptBatch
from headrace.records.fallback import columns as fallback_columns
from headrace.records.fallback import encode, header
from headrace.records.fallback.cleaning import PureOffsetMap
from headrace.records.fallback.columns import PureColumns
from headrace.records.fallback.merging import merge
from headrace.records.fallback.messages import PureMessages
from headrace.records.fallback.streams import xadd_arguments
from headrace.records.walk import Record, records

MAYBE = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=5), MAYBE), max_size=3).map(tuple)
FIELDS = st.lists(st.tuples(MAYBE, MAYBE, st.integers(-1, 2**52), HEADERS), min_size=1, max_size=9)
BATCHES = FIELDS.map(lambda fields: bytes(build(fields)))
PARTS = st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x0c", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01"])
SECTIONS = (
    mutated(BATCHES.map(lambda batch: batch[61:])) | st.binary(max_size=60) | st.lists(PARTS, max_size=40).map(b"".join)
)
NO_UTF8 = bytes.fromhex("14000000010102040080010c000002010100")
"""Two records, the first with a header whose name is no UTF-8."""
COUNTS = st.integers(1, 9) | st.integers(-3, 20) | st.sampled_from([2**31 - 1, -(2**31)])
OFFSETS = st.integers(0, 20) | st.sampled_from([-(2**63), 2**63 - 1])
TIMESTAMPS = st.integers(-1, 2**52) | st.sampled_from([-(2**63), 2**63 - 1])


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """What it gives, or the class of the documented error."""
    try:
        return call(*arguments)
    except (BatchError, ValueError) as error:
        return type(error)


@given(data=mutated(BATCHES) | st.binary(max_size=200), repaired=st.booleans())
def test_any_bytes_as_a_batch(data: bytes, repaired: bool) -> None:
    if repaired and len(data) > 61:
        data = data[:8] + (len(data) - 12).to_bytes(4, "big") + data[12:]
        data = data[:17] + header.crc32c(data[21:]).to_bytes(4, "big") + data[21:]
    assert outcome(accelerator.peek, bounded(data)) == outcome(header.peek, data)
    assert outcome(accelerator.check, bounded(data)) == outcome(header.check, data)


@given(section=SECTIONS, count=COUNTS, last=COUNTS, base_offset=OFFSETS, base_timestamp=TIMESTAMPS)
def test_any_bytes_as_records(section: bytes, count: int, last: int, base_offset: int, base_timestamp: int) -> None:
    asked = count, last, base_offset, base_timestamp, None
    found = outcome(accelerator.records, Record, bounded(section), *asked)
    by_python = outcome(fallback_columns.records, Record, section, *asked)
    if isinstance(found, list) and isinstance(by_python, list):
        assert found == by_python
        assert len(found) == count


@given(
    section=SECTIONS,
    count=COUNTS,
    last=COUNTS,
    first=st.integers(-1, 12),
    part=st.binary(max_size=2),
    most=st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(0, 3)),
)
def test_any_bytes_as_a_few_records(
    section: bytes, count: int, last: int, first: int, part: bytes, most: tuple[int, int, int]
) -> None:
    asked = count, last, 3, 0, None, first, part, *most
    found = outcome(accelerator.some, Record, bounded(section), *asked)
    by_python = outcome(fallback_columns.some, Record, section, *asked)
    if CorruptBatch not in (found, by_python):
        # Of where to go on C code knows more.
        assert found[:2] == by_python[:2]


@given(
    section=SECTIONS, count=COUNTS, last=COUNTS, rows=st.integers(1, 9), size=st.integers(1, 99), named=st.booleans()
)
def test_any_bytes_as_columns(section: bytes, count: int, last: int, rows: int, size: int, named: bool) -> None:
    for kind in (accelerator.open_columns, PureColumns):
        columns = kind(rows, size, named)
        try:
            columns.open(bounded(section), count, last, 0, 0, False, 2, 9)
            while not columns.fill():
                assert columns.rows <= rows
                columns.take()
        except CorruptBatch:
            continue
        assert columns.rows <= rows


@given(
    section=SECTIONS,
    count=COUNTS,
    last=COUNTS,
    base_timestamp=TIMESTAMPS,
    first=st.integers(-1, 12),
    not_before=st.none() | TIMESTAMPS,
    most=st.tuples(st.integers(0, 9), st.integers(0, 60)),
)
def test_any_bytes_as_messages(
    section: bytes,
    count: int,
    last: int,
    base_timestamp: int,
    first: int,
    not_before: int | None,
    most: tuple[int, int],
) -> None:
    asked = count, last, 3, base_timestamp, None, first, not_before, b'{"key":'
    written = []
    for kind, payload in ((accelerator.open_messages, bounded(section)), (PureMessages, section)):
        messages = kind(*most)
        written.append((outcome(messages.write, payload, *asked), messages.count, messages.size, messages.take()))
    by_c, by_python = written
    if CorruptBatch not in {by_c[0], by_python[0]}:
        assert by_c == by_python


@given(
    section=SECTIONS,
    count=COUNTS,
    last=COUNTS,
    base_timestamp=TIMESTAMPS,
    fixed=st.none() | TIMESTAMPS,
    first=st.integers(-1, 12),
    not_before=st.none() | TIMESTAMPS,
)
def test_any_bytes_as_records_to_be_found(
    section: bytes,
    count: int,
    last: int,
    base_timestamp: int,
    fixed: int | None,
    first: int,
    not_before: int | None,
) -> None:
    asked = count, last, 3, base_timestamp, fixed, first, not_before
    found = outcome(accelerator.find, bounded(section), *asked)
    by_python = outcome(fallback_columns.find, section, *asked)
    if CorruptBatch not in (found, by_python):
        assert found == by_python


EDGES = (
    # In order, and near the end of the data more often than not.
    st.lists(st.integers(0, 12), min_size=3, max_size=8).map(sorted)
    | st.lists(st.integers(0, 12) | st.integers(-(2**31), 2**31 - 1), max_size=8)
).map(lambda edges: struct.pack(f"={len(edges)}i", *edges))
ARROW_COLUMNS = st.none() | st.tuples(
    st.none() | st.binary(max_size=2).map(bounded),
    (EDGES | EDGES.map(lambda edges: edges[:-1])).map(bounded),
    st.binary(min_size=6, max_size=12).map(bounded),
    st.integers(0, 2) | st.sampled_from([-1, 9, 2**63 - 1]),
)


@given(ARROW_COLUMNS, ARROW_COLUMNS, st.integers(-1, 2), st.integers(0, 5), st.integers(0, 60))
def test_any_buffers_as_columns_to_be_encoded(key: Any, value: Any, start: int, stop: int, most: int) -> None:
    found = outcome(accelerator.encode_columns, key, value, start, stop, most)
    by_python = outcome(encode.encode_columns, key, value, start, stop, most)
    if ValueError not in {found, by_python}:
        assert found == by_python


NUMBERS = st.tuples(
    (
        st.lists(st.integers(0, 9), max_size=8).map(sorted)
        | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8)
        | st.just([*range(8)])
    ).map(lambda numbers: bounded(struct.pack(f"={len(numbers)}q", *numbers))),
    st.integers(0, 2) | st.sampled_from([-1, 9, 2**63 - 1]),
)
HEADER_LISTS = st.none() | st.tuples(
    st.none() | st.binary(max_size=2).map(bounded),
    EDGES.map(bounded),
    st.integers(0, 2) | st.sampled_from([-1, 9, 2**63 - 1]),
    ARROW_COLUMNS,
    ARROW_COLUMNS,
)


@given(ARROW_COLUMNS, HEADER_LISTS, NUMBERS, NUMBERS, st.integers(-1, 2), st.integers(0, 5), st.integers(0, 60))
def test_any_buffers_as_rows_to_be_encoded(
    value: Any, headers: Any, offsets: Any, timestamps: Any, start: int, stop: int, most: int
) -> None:
    asked = None, value, headers, offsets, timestamps, start, stop, most
    found = outcome(accelerator.encode_rows, *asked)
    by_python = outcome(encode.encode_rows, *asked)
    if ValueError not in {found, by_python}:
        assert found == by_python


@example(section=NO_UTF8, count=2, last=1, base_timestamp=0, fixed=None)
@given(section=SECTIONS, count=COUNTS, last=COUNTS, base_timestamp=TIMESTAMPS, fixed=st.none() | TIMESTAMPS)
def test_any_bytes_as_entries_of_a_stream(
    section: bytes, count: int, last: int, base_timestamp: int, fixed: int | None
) -> None:
    asked = count, last, base_timestamp, fixed
    found = outcome(streams.write_arguments, bounded(section), *asked)
    by_python = outcome(xadd_arguments, section, *asked)
    if CorruptBatch not in (found, by_python):
        assert found == by_python


SEED = bytes(range(16))
HEADERS_OF_BATCHES = st.builds(
    struct.Struct(">qiibIhiqqqhii").pack,
    OFFSETS,
    st.just(0),
    st.just(3),
    st.just(2),
    st.just(0),
    st.sampled_from([0, 0, 0, 1, 4, 8, 0x10, 0x20, 0x40, 0x48, 0x7F]),
    COUNTS,
    TIMESTAMPS,
    TIMESTAMPS,
    st.integers(-1, 3),
    st.just(0),
    st.just(0),
    COUNTS,
)


def signed(header_and_records: tuple[bytes, bytes]) -> bytes:
    """A batch with a valid length and CRC."""
    data = b"".join(header_and_records)
    data = data[:8] + (len(data) - 12).to_bytes(4, "big") + data[12:]
    return data[:17] + header.crc32c(data[21:]).to_bytes(4, "big") + data[21:]


STORED = st.lists(st.tuples(HEADERS_OF_BATCHES, SECTIONS).map(signed) | mutated(BATCHES) | BATCHES, max_size=5)


@given(
    batches=STORED,
    section=st.none() | SECTIONS,
    flags=st.binary(min_size=5, max_size=5).map(lambda flags: bytes(flag >> 7 for flag in flags)),
    slots=st.integers(2, 9),
    most=st.integers(0, 1_000),
    now=TIMESTAMPS,
    horizon=TIMESTAMPS,
    clean_segment=st.booleans(),
)
def test_any_bytes_as_batches_to_be_cleaned(
    batches: list[bytes],
    section: bytes | None,
    flags: bytes,
    slots: int,
    most: int,
    now: int,
    horizon: int,
    clean_segment: bool,
) -> None:
    flags = flags[: len(batches)]
    found = []
    stored: list[Any] = [bounded(batch) for batch in batches]
    for kind, log in ((accelerator.open_offset_map, stored), (PureOffsetMap, batches)):
        offsets = kind(slots, SEED)
        sections: list[Any] = [None if section is None else bounded(section)] * len(batches)
        added = offsets.add(log, sections, flags)
        found.append((added, offsets.clean(log, sections, flags, now, horizon, clean_segment)))
    assert found[0] == found[1]
    assert accelerator.merge(stored, sections, most) == merge(batches, sections, most)
    offsets = accelerator.open_offset_map(slots, SEED)
    cleaning.add_batches(offsets, batches, limit=1_000)
    cleaning.clean(
        batches,
        offsets,
        producers_with_data=set(),
        now_ms=max(now, 0),
        delete_retention_ms=9,
        clean_segment=clean_segment,
        limit=1_000,
        merged_bytes=most,
    )


@given(codec=st.integers(1, 4), data=st.binary(max_size=100))
def test_any_bytes_as_compressed_records(codec: int, data: bytes) -> None:
    try:
        assert len(decompress(codec, data, limit=100_000)) <= 100_000
    except BatchError:
        return


@given(codec=st.integers(0, 4), data=st.data())
def test_a_batch_whose_records_were_changed(codec: int, data: st.DataObject) -> None:
    batch = build([(b"key", b"value" * at, at, (("name", b"content"),)) for at in range(9)], codec=codec)
    batch[61:] = data.draw(mutated(st.just(bytes(batch[61:]))))
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    for read in (
        lambda: records(batch, 0, limit=100_000),
        lambda: list(decode([(0, batch)], topic="t", partition=0, first_offset=0, end_offset=9, include_headers=True)),
    ):
        try:
            read()
        except BatchError:
            continue


@given(codec=st.integers(1, 4), records_section=st.binary(max_size=3_000))
def test_every_codec_brings_back_any_bytes(codec: int, records_section: bytes) -> None:
    assert decompress(codec, compress(codec, records_section)) == records_section
