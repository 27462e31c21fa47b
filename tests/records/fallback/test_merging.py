"""Merging of cleaned batches: the same in C and in Python, and every record stays as it is."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.batch import BatchHeader, log_append_time, read_header
from headrace.records.build import build
from headrace.records.fallback.cleaning import HORIZON
from headrace.records.fallback.header import Buffer, crc32c
from headrace.records.fallback.merging import LONGEST_MERGED, merge
from headrace.records.markers import Marker, build_marker
from headrace.records.walk import Record, records

Merge = Callable[[list[bytes], list[Buffer | None], int], list[bytes | None]]
BOTH: list[Merge] = [accelerator.merge, merge]
TIMES = st.integers(-1, 2**52) | st.sampled_from([-(2**62), 2**62, 2**63 - 1])
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=3),
        st.none() | st.binary(max_size=70),
        TIMES,
        st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=4,
)
LAYOUTS = st.fixed_dictionaries(
    {},
    optional={
        "gap": st.sampled_from([1, 100, 2**31 - 2, 2**31, 2**40]),
        "leader_epoch": st.integers(0, 1),
        "producer_id": st.integers(0, 2),
        "transactional": st.booleans(),
        "codec": st.sampled_from([4, 4, 1]),
        "horizon": st.integers(0, 1),
        "log_append": st.integers(5, 6),
        "broken": st.booleans(),
        "marker": st.just(value=True),
    },
)


def plain_section(fields: Any) -> bytes:
    return bytes(build(fields))[61:]


def log_of(pieces: list[tuple[list[Any], dict[str, Any]]]) -> tuple[list[bytes], list[Buffer | None]]:
    """Batches in the order of their offsets, with their decompressed records."""
    batches: list[bytes] = []
    sections: list[Buffer | None] = []
    offset = 7
    for fields, layout in pieces:
        offset += layout.get("gap", 0)
        producer, codec = layout.get("producer_id", -1), layout.get("codec", 0)
        made = bytearray(
            build(
                fields,
                base_offset=offset,
                leader_epoch=layout.get("leader_epoch", 0),
                codec=codec,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=offset % 1_000 if producer >= 0 else -1,
                transactional=producer >= 0 and layout.get("transactional", False),
            )
        )
        if "marker" in layout:
            made = bytearray(build_marker(Marker(3, 0, True, 1), 5))
            made[:8] = offset.to_bytes(8, "big")
            codec = 0
        if "log_append" in layout:
            log_append_time(made, layout["log_append"])
        if "horizon" in layout:
            made[22] |= HORIZON
            made[27:35] = layout["horizon"].to_bytes(8, "big")
        made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
        if layout.get("broken"):
            made[-1] ^= 1
        batches.append(bytes(made))
        sections.append(plain_section(fields) if codec else None)
        offset += len(fields)
    return batches, sections


def opened(batch: bytes, section: Buffer | None) -> tuple[BatchHeader, list[Record]]:
    """A batch with its records, which are plain or in a section."""
    header = read_header(batch[:61])
    made = bytearray(batch[:61]) + (batch[61:] if section is None else bytes(section))
    made[22] &= ~7
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[17:21] = crc32c(bytes(made[21:])).to_bytes(4, "big")
    return header, list(records(bytes(made), header.base_offset))


@given(st.lists(st.tuples(ROWS, LAYOUTS), max_size=8), st.integers(0, 400) | st.just(64 << 10))
def test_merged_batches_have_the_same_records(pieces: list[Any], most: int) -> None:
    batches, sections = log_of(pieces)
    found = accelerator.merge(batches, sections, most)
    assert found == merge(batches, sections, most)
    assert len(found) == len(batches)
    for start, after in enumerate(found):
        if after is None or after is batches[start]:
            continue
        stop = start + 1
        while stop < len(found) and found[stop] is None:
            stop += 1
        assert stop > start + 1
        header, left = opened(after, after[61:])
        before = [opened(*each) for each in zip(batches[start:stop], sections[start:stop], strict=True)]
        assert left == [record for _, each in before for record in each]
        assert header.crc == crc32c(after[21:])
        first, last = before[0][0], before[-1][0]
        assert header.base_offset == first.base_offset
        assert header.base_offset + header.span == last.base_offset + last.span
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert not header.is_transactional
        assert not header.is_control
        assert {(each.attributes, each.leader_epoch) for each, _ in before} == {
            (header.attributes, header.leader_epoch)
        }
        assert header.max_timestamp == max(record.timestamp for record in left)
        if header.attributes & HORIZON:
            assert {each.base_timestamp for each, _ in before} == {header.base_timestamp}
        originals = zip(batches[start:stop], sections[start:stop], strict=True)
        assert sum(len(batch) - 61 if section is None else len(section) for batch, section in originals) <= most
    assert found[:1] != [None]


@pytest.mark.parametrize("merged", BOTH)
def test_one_record_batches_become_one(merged: Merge) -> None:
    batches = [
        bytes(build([(b"k", b"value", 5 + number, ())], base_offset=3 * number, producer_id=9)) for number in range(500)
    ]
    found = merged(batches, [None] * 500, 64 << 10)
    assert found[1:] == [None] * 499
    assert found[0] is not None
    assert len(found[0]) < sum(map(len, batches)) / 3
    header, left = opened(found[0], None)
    assert [(record.offset, record.timestamp) for record in left] == [(3 * each, 5 + each) for each in range(500)]
    assert (header.base_offset, header.span, header.count) == (0, 3 * 499 + 1, 500)
    assert (header.base_timestamp, header.max_timestamp) == (5, 504)


@pytest.mark.parametrize("merged", BOTH)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"producer_id": 1, "transactional": True}),
        ({}, {"marker": True}),
        ({}, {"codec": 4}),
        ({}, {"leader_epoch": 1}),
        ({}, {"horizon": 5}),
        ({"horizon": 5}, {"horizon": 6}),
        ({}, {"log_append": 5}),
        ({"log_append": 5}, {"log_append": 6}),
        ({}, {"broken": True}),
        ({}, {"gap": 2**31 - 1}),
    ],
)
def test_other_batches_stay(merged: Merge, one: dict[str, Any], other: dict[str, Any]) -> None:
    fields = [(b"k", b"v", 5, ())]
    batches, sections = log_of([(fields, one), (fields, other)])
    for order in (slice(None), slice(None, None, -1)):
        found = merged(batches[order], sections[order], 1_000)
        assert all(after is before for after, before in zip(found, batches[order], strict=True))
    twice, sections = log_of([(fields, one), (fields, one)])
    assert merged(twice, sections, 1_000)[1] is None


@pytest.mark.parametrize("merged", BOTH)
def test_the_last_offset_has_31_bits_above_the_first(merged: Merge) -> None:
    fields = [(b"k", b"v", 5, ())]
    batches, sections = log_of([(fields, {}), (fields, {"gap": 2**31 - 2})])
    found = merged(batches, sections, 1_000)
    assert found[0] is not None
    assert [record.offset for record in opened(found[0], None)[1]] == [7, 7 + 2**31 - 1]


@pytest.mark.parametrize("merged", BOTH)
def test_what_is_no_size(merged: Merge) -> None:
    for most in (-1, LONGEST_MERGED + 1):
        with pytest.raises(ValueError, match="merge: batches of 0 to 268435456 bytes"):
            merged([], [], most)
    with pytest.raises(ValueError):  # noqa: PT011  # zip's own
        merged([b""], [], 1)
