"""Cleaning of batches keeps the last record of each key, and what readers of committed records need."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import cleaning
from headrace.records.accelerator import OffsetMap
from headrace.records.batch import BatchHeader, check, log_append_time, read_header
from headrace.records.build import build
from headrace.records.cleaning import Cleaned, add_batches, clean, open_offset_map
from headrace.records.errors import BatchError
from headrace.records.fallback.header import crc32c
from headrace.records.markers import Marker, build_marker, parse_marker
from headrace.records.walk import Record, records

pytestmark = pytest.mark.usefixtures("implementation")
SEED = bytes(range(16))
RETENTION = 50


def batch_of(
    offset: int, *pairs: tuple[bytes | None, bytes | None], codec: int = 0, producer: int = -1, time: int = 5
) -> bytes:
    """A batch of keys and values, the times of which are one ms apart; of a transaction with a producer."""
    fields = [(key, value, time + index, (("h", b"x"),)) for index, (key, value) in enumerate(pairs)]
    transactional = producer >= 0
    return bytes(
        build(
            fields,
            base_offset=offset,
            leader_epoch=3,
            codec=codec,
            producer_id=producer,
            producer_epoch=0 if transactional else -1,
            base_sequence=offset if transactional else -1,
            transactional=transactional,
        )
    )


def marker_of(offset: int, producer: int, commit: bool = True) -> bytes:
    """A marker at an offset."""
    made = build_marker(Marker(producer, 0, commit, 1), 7)
    made[:8] = offset.to_bytes(8, "big")
    return bytes(made)


def cleaned(
    batches: list[bytes],
    *,
    now: int = 1_000,
    clean_segment: bool = False,
    aborted: tuple[int, ...] = (),
    with_data: set[int] | None = None,
) -> Cleaned:
    """All of them after one pass."""
    offsets = open_offset_map(100, 1 << 20, SEED)
    assert add_batches(offsets, batches, aborted) == (None, 0)
    return clean(
        batches,
        offsets,
        aborted=aborted,
        producers_with_data=set() if with_data is None else with_data,
        now_ms=now,
        delete_retention_ms=RETENTION,
        clean_segment=clean_segment,
    )


def remaining(found: Cleaned) -> list[bytes]:
    """Batches that are left."""
    return [batch for batch in found.batches if batch is not None]


def records_of(batches: list[bytes]) -> list[Record]:
    """All records, with a check of each CRC."""
    found: list[Record] = []
    for batch in batches:
        header = read_header(batch[:61])
        assert header.crc == crc32c(batch[21:])
        assert header.size == len(batch)
        found += records(batch, header.base_offset)
    return found


@pytest.mark.parametrize("codec", range(5))
def test_a_changed_batch_keeps_all_but_what_has_to_change(codec: int) -> None:
    first = batch_of(10, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec, producer=7)
    second = batch_of(13, (b"c", b"4"), (b"a", b"5"))
    found = cleaned([first, second])
    changed, same = found.batches
    assert changed is not None
    assert same is second
    before, after = read_header(first[:61]), read_header(changed[:61])
    assert after == before._replace(
        batch_length=len(changed) - 12, crc=after.crc, max_timestamp=before.base_timestamp + 1, count=1
    )
    assert [(each.offset, each.key, each.timestamp) for each in records_of([changed])] == [(11, b"b", 6)]
    assert found._replace(batches=[]) == Cleaned(
        [], 5, 3, len(first) + len(second), len(changed) + len(second), 0, None, 0, []
    )


@pytest.mark.parametrize("codec", [0, 4])
def test_unchanged_batches_are_the_same_objects_and_empty_ones_go(codec: int) -> None:
    batches = [batch_of(0, (b"a", b"1"), codec=codec), batch_of(1, (b"a", b"2"), (b"b", b""), codec=codec)]
    found = cleaned(batches)
    assert found.batches[0] is None
    assert found.batches[1] is batches[1]


def test_records_without_key_and_batches_without_records_go() -> None:
    empty = bytearray(batch_of(9, (b"x", b"1"))[:61])
    empty[8:12] = (49).to_bytes(4, "big")
    empty[57:61] = bytes(4)
    empty[17:21] = crc32c(bytes(empty[21:])).to_bytes(4, "big")
    found = cleaned([batch_of(0, (None, b"1"), (b"a", b"2"), (None, None)), bytes(empty)])
    assert [record.key for record in records_of(remaining(found))] == [b"a"]
    assert found.batches[1] is None


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_tombstones_go_after_their_horizon(codec: int) -> None:
    batches = [
        batch_of(0, (b"a", b"1"), (b"b", b"1"), (b"x", b"1"), codec=codec),
        batch_of(3, (b"a", None), (b"c", b"1"), (b"b", None), codec=codec, time=900),
    ]
    found = cleaned(batches, now=1_000)
    assert (found.tombstones, found.earliest_horizon_ms) == (2, 1_050)
    first, second = remaining(found)
    header = read_header(second[:61])
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (codec | 0x40, 1_050, 902)
    assert [(each.offset, each.key, each.timestamp) for each in records_of([first, second])] == [
        (2, b"x", 7),
        (3, b"a", 900),
        (4, b"c", 901),
        (5, b"b", 902),
    ]
    early = cleaned([first, second], now=1_049, clean_segment=True)
    assert early.batches == [first, second]
    assert (early.tombstones, early.earliest_horizon_ms) == (2, 1_050)
    late = cleaned([first, second], now=1_050, clean_segment=True)
    assert [(each.key, each.timestamp) for each in records_of(remaining(late))] == [(b"x", 7), (b"c", 901)]
    assert (late.tombstones, late.earliest_horizon_ms) == (0, None)


def with_horizon(batch: bytes) -> bytes:
    """A batch with the attribute of a horizon, which a client has set."""
    forged = bytearray(batch)
    forged[22] |= 0x40
    forged[17:21] = crc32c(bytes(forged[21:])).to_bytes(4, "big")
    return bytes(forged)


def test_a_horizon_that_a_client_wrote_does_not_count() -> None:
    found = cleaned([with_horizon(batch_of(0, (b"a", None), (b"b", b"1")))], now=1_000)
    assert read_header(remaining(found)[0][:61]).base_timestamp == 1_050
    assert [(each.key, each.timestamp) for each in records_of(remaining(found))] == [(b"a", 5), (b"b", 6)]


def test_times_of_the_broker_stay() -> None:
    batch = bytearray(batch_of(0, (b"a", b"1"), (b"b", None), (b"a", b"2")))
    log_append_time(batch, 99)
    found = cleaned([bytes(batch)])
    assert [(each.key, each.timestamp) for each in records_of(remaining(found))] == [(b"b", 99), (b"a", 99)]


def test_the_horizon_has_64_bits() -> None:
    offsets = open_offset_map(10, 1 << 20, SEED)
    batches = [batch_of(0, (b"a", None))]
    add_batches(offsets, batches)
    found = clean(
        batches,
        offsets,
        producers_with_data=set(),
        now_ms=1_000,
        delete_retention_ms=2**63 - 1,
        clean_segment=False,
    )
    assert found.earliest_horizon_ms == 2**63 - 1
    assert [each.timestamp for each in records_of(remaining(found))] == [5]


def test_batches_of_aborted_transactions_go_and_supersede_nothing() -> None:
    batches = [
        batch_of(0, (b"a", b"1"), codec=4),
        batch_of(1, (b"a", b"2"), producer=7, codec=4),
        marker_of(2, 7, commit=False),
    ]
    found = cleaned(batches, aborted=(1,))
    assert [record.value for record in records_of(remaining(found))] == [b"1"]
    assert (found.records_read, found.records_kept) == (3, 2)


def test_a_marker_stays_until_its_data_and_its_horizon_are_gone() -> None:
    batches = [batch_of(0, (b"a", b"1"), producer=7), marker_of(1, 7), marker_of(2, 8, commit=False)]
    first = cleaned(batches)
    assert first.batches[:2] == batches[:2]
    stamped = first.batches[2]
    assert stamped is not None
    header = read_header(stamped[:61])
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (0x70, 1_050, 7)
    assert parse_marker(stamped) == Marker(8, 0, False, 1)
    assert header.crc == crc32c(stamped[21:])
    assert first.earliest_horizon_ms == 1_050
    second = cleaned([*remaining(first), batch_of(3, (b"a", b"2"))], now=1_049, clean_segment=True)
    assert second.batches[0] is None
    assert second.batches[2] is stamped
    assert second.removed_aborts == []
    third = cleaned(remaining(second), now=1_098, clean_segment=True)
    assert third.removed_aborts == [2]
    assert [read_header(batch[:61]).base_offset for batch in remaining(third)] == [1, 3]
    assert (third.records_read, third.records_kept, third.earliest_horizon_ms) == (3, 2, 1_099)
    fourth = cleaned(remaining(third), now=1_099, clean_segment=True)
    assert [read_header(batch[:61]).base_offset for batch in remaining(fourth)] == [3]
    assert fourth.removed_aborts == []


def test_transactions_are_followed_from_piece_to_piece() -> None:
    with_data: set[int] = set()
    cleaned([batch_of(0, (b"a", b"1"), producer=7), batch_of(1, (b"b", b"1"), producer=8)], with_data=with_data)
    assert with_data == {7, 8}
    marker = marker_of(2, 7)
    assert cleaned([marker], with_data=with_data).batches[0] is marker
    assert with_data == {8}


def test_a_batch_that_cannot_be_read_is_kept_and_adds_no_keys() -> None:
    good = batch_of(0, (b"a", b"1"))
    sections = bytearray(batch_of(1, (b"a", b"2"), (b"a", b"3")))
    sections[-2] ^= 0x55
    sections[17:21] = crc32c(bytes(sections[21:])).to_bytes(4, "big")
    crc = bytearray(batch_of(3, (b"a", b"2")))
    crc[-1] ^= 1
    compressed = bytearray(batch_of(4, (b"a", b"4"), codec=4, producer=9))
    compressed[61:65] = b"none"
    compressed[17:21] = crc32c(bytes(compressed[21:])).to_bytes(4, "big")
    bad = [bytes(sections), bytes(crc), bytes(compressed), b"", good[:40]]
    offsets = open_offset_map(100, 1 << 20, SEED)
    assert add_batches(offsets, [good, *bad]) == (None, 5)
    assert (len(offsets), offsets.get(b"a")) == (1, 0)
    with_data: set[int] = set()
    found = cleaned_with(offsets, [good, *bad], with_data)
    assert all(after is before for after, before in zip(found.batches, [good, *bad], strict=True))
    assert (found.unreadable, found.records_read) == (5, 1)
    assert with_data == {9}


def cleaned_with(
    offsets: OffsetMap, batches: list[bytes], with_data: set[int], limit: int = 1 << 20, *, clean_segment: bool = False
) -> Cleaned:
    return clean(
        batches,
        offsets,
        producers_with_data=with_data,
        now_ms=1_000,
        delete_retention_ms=RETENTION,
        clean_segment=clean_segment,
        limit=limit,
    )


def test_a_batch_that_expands_too_much_is_kept() -> None:
    bomb = batch_of(0, (b"a", bytes(1 << 20)), codec=4)
    offsets = open_offset_map(100, 1 << 20, SEED)
    assert add_batches(offsets, [bomb], limit=1 << 19) == (None, 1)
    found = cleaned_with(offsets, [bomb], set(), limit=1 << 19)
    assert found.batches[0] is bomb


def test_a_piece_with_much_in_it_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_MOST_DECOMPRESSED", 100)
    batches = [
        batch_of(2 * number, (b"%d" % (number % 5), bytes(40)), (b"x", b"%d" % number), codec=number % 2 * 4)
        for number in range(20)
    ]
    found = cleaned(batches)
    assert [record.key for record in records_of(remaining(found))] == [b"0", b"1", b"2", b"3", b"4", b"x"]


def test_a_full_map_says_where_the_pass_ends() -> None:
    batches = [batch_of(5 * number, *((b"%d" % (number * 5 + each), b"v") for each in range(5))) for number in range(5)]
    offsets = open_offset_map(100, 20 * 24, SEED)
    assert offsets.memory_bytes == 480
    assert add_batches(offsets, batches).stopped_at == 15
    assert offsets.full
    assert add_batches(offsets, batches[4:]).stopped_at == 20


def test_one_batch_larger_than_the_map_counts_as_added() -> None:
    batches = [batch_of(0, *((b"%d" % number, b"v") for number in range(50))), batch_of(50, (b"1", b"w"))]
    offsets = open_offset_map(100, 0, SEED)
    assert add_batches(offsets, batches).stopped_at == 50
    found = cleaned_with(offsets, batches[:1], set())
    assert found.batches[0] is batches[0]


@pytest.mark.parametrize("forged", [False, True])
def test_tombstones_that_the_map_lacks_get_no_horizon(forged: bool) -> None:
    """Their keys may have older records, which would be the last ones without them."""
    first = batch_of(0, *((b"%d" % number, b"v") for number in range(9)))
    second = batch_of(9, *((b"%d" % number, None) for number in range(9)), (b"0", None))
    offsets = open_offset_map(100, 7 * 24, SEED)
    assert add_batches(offsets, [second]).stopped_at is None
    assert 0 < cleaned_with(offsets, [first], set(), clean_segment=True).records_kept < 9
    found = cleaned_with(offsets, [with_horizon(second) if forged else second], set())
    assert (found.batches[0], found.tombstones, found.earliest_horizon_ms) == (second, 10, None)
    later = cleaned_with(open_offset_map(0, 0, SEED), [second], set(), clean_segment=True)
    assert later.batches[0] is second


def cleaned_and_merged(batches: list[bytes], *, clean_segment: bool = False) -> list[bytes | None]:
    offsets = open_offset_map(100, 1 << 20, SEED)
    assert add_batches(offsets, batches) == (None, 0)
    found = clean(
        batches,
        offsets,
        producers_with_data=set(),
        now_ms=1_000,
        delete_retention_ms=RETENTION,
        clean_segment=clean_segment,
        merged_bytes=64 << 10,
    )
    assert found.bytes_kept == sum(len(batch) for batch in found.batches if batch is not None)
    return found.batches


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_small_batches_become_one_with_their_codec(codec: int) -> None:
    batches = [batch_of(2 * number, (b"%d" % number, b"v"), (b"x", b"v"), codec=codec) for number in range(20)]
    found = cleaned_and_merged(batches)
    [merged] = [batch for batch in found if batch is not None]
    header = read_header(merged[:61])
    assert (header.base_offset, header.span, header.count, header.attributes) == (0, 40, 21, codec)
    assert (header.leader_epoch, header.producer_id) == (3, -1)
    assert len(merged) < sum(map(len, batches)) / 2
    assert [(each.offset, each.key, each.timestamp) for each in records_of([merged])] == [
        *((2 * number, b"%d" % number, 5) for number in range(20)),
        (39, b"x", 6),
    ]


def test_batches_are_merged_up_to_a_marker() -> None:
    batches = [
        *(batch_of(number, (b"%d" % number, b"v")) for number in range(3)),
        marker_of(3, 7, commit=False),
        *(batch_of(number, (b"%d" % number, b"v")) for number in range(4, 7)),
    ]
    found = cleaned_and_merged(batches)
    assert [index for index, batch in enumerate(found) if batch is not None] == [0, 3, 4]
    # Also if a pass removes the marker: a broker may keep it.
    left = [batch for batch in found if batch is not None]
    offsets = open_offset_map(0, 0, SEED)
    later = clean(
        left,
        offsets,
        producers_with_data=set(),
        now_ms=5_000,
        delete_retention_ms=0,
        clean_segment=True,
        merged_bytes=99,
    )
    assert later.removed_aborts == [3]
    assert later.batches == [left[0], None, left[2]]


def test_batches_of_a_clean_segment_are_merged_if_half_of_them_go() -> None:
    large = [batch_of(10 * number, (b"large %d" % number, bytes(40_000))) for number in range(3)]
    small = [batch_of(100 + number, (b"%d" % number, b"v")) for number in range(4)]
    assert cleaned_and_merged([*large, *small[:2]])[3:] == [None, None]
    for count in range(1, 4):
        batches = [*large, *small[:count]]
        assert cleaned_and_merged(batches, clean_segment=True) == batches
    found = cleaned_and_merged([*large, *small], clean_segment=True)
    assert [index for index, batch in enumerate(found) if batch is not None] == [0, 1, 2]
    larger = [batch_of(10 * number, (b"large %d" % number, bytes(40_000))) for number in range(9)]
    assert cleaned_and_merged([*larger, *small], clean_segment=True) == [*larger, *small]


def test_what_cannot_be_read_is_not_merged() -> None:
    batches = [batch_of(number, (b"%d" % number, b"v"), codec=number % 2 * 4) for number in range(2)]
    damaged = [bytearray(batch) for batch in batches]
    for batch in damaged:
        batch[-1] ^= 1
    given_batches = [*batches, *map(bytes, damaged), *batches]
    assert cleaned_with_merging(given_batches) == given_batches


def cleaned_with_merging(batches: list[bytes]) -> list[bytes | None]:
    offsets = open_offset_map(100, 1 << 20, SEED)
    return clean(
        batches,
        offsets,
        producers_with_data=set(),
        now_ms=1_000,
        delete_retention_ms=RETENTION,
        clean_segment=False,
        merged_bytes=1_000,
    ).batches


@dataclass
class Log:
    """A log with what its leader knows about transactions."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """Producer -> first offset."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer, first offset, marker."""
    cleaned_to: int = 0
    map_slots: int = 100
    merged_bytes: int = 0

    def append(self, producer: int, pairs: list[tuple[bytes, bytes | None]], codec: int, time: int) -> None:
        if producer >= 0:
            self.open.setdefault(producer, self.end)
        self.batches.append(batch_of(self.end, *pairs, codec=codec, producer=producer, time=time))
        self.end += len(pairs)

    def finish(self, producer: int, commit: bool) -> None:
        first = self.open.pop(producer, None)
        if first is None:
            return
        self.batches.append(marker_of(self.end, producer, commit))
        if not commit:
            self.aborted.append((producer, first, self.end))
        self.end += 1

    def stable_end(self) -> int:
        return min(self.open.values(), default=self.end)

    def is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            producer == header.producer_id and first <= header.base_offset < marker
            for producer, first, marker in self.aborted
        )

    def view(self) -> dict[bytes, bytes]:
        """The last value of each key that a reader of committed records sees, as clients filter."""
        found: dict[bytes, bytes] = {}
        skipped: set[int] = set()
        waiting = sorted(self.aborted, key=lambda each: each[1])
        for batch in self.batches:
            header = read_header(batch[:61])
            if header.base_offset >= self.stable_end():
                break
            while waiting and waiting[0][1] <= header.base_offset:
                skipped.add(waiting.pop(0)[0])
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                for record in records(batch, header.base_offset):
                    assert record.key is not None
                    if record.value is None:
                        found.pop(record.key, None)
                    else:
                        found[record.key] = record.value
        return found

    def run(self, bound: int, now: int) -> None:
        """One pass, as a leader would run it."""
        headers = [read_header(batch[:61]) for batch in self.batches]
        bound = max(min(bound, self.stable_end()), self.cleaned_to)
        dirty = [index for index, each in enumerate(headers) if self.cleaned_to <= each.base_offset < bound]
        offsets = open_offset_map(self.map_slots, self.map_slots * 24, SEED)
        added = add_batches(
            offsets,
            [self.batches[index] for index in dirty],
            [place for place, index in enumerate(dirty) if self.is_aborted(headers[index])],
        )
        if added.stopped_at is not None:
            bound = added.stopped_at
        with_data: set[int] = set()
        made: list[bytes] = []
        for segment, low, high in ((True, 0, self.cleaned_to), (False, self.cleaned_to, bound)):
            batches = [
                batch for batch, each in zip(self.batches, headers, strict=True) if low <= each.base_offset < high
            ]
            found = clean(
                batches,
                offsets,
                aborted=[index for index, each in enumerate(batches) if self.is_aborted(read_header(each[:61]))],
                producers_with_data=with_data,
                now_ms=now,
                delete_retention_ms=RETENTION,
                clean_segment=segment,
                merged_bytes=self.merged_bytes,
            )
            assert found.unreadable == 0
            made += remaining(found)
            self.aborted = [each for each in self.aborted if each[2] not in found.removed_aborts]
        rest = [batch for batch, each in zip(self.batches, headers, strict=True) if each.base_offset >= bound]
        self.batches = made + rest
        self.cleaned_to = bound


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
VALUES = st.none() | st.integers(0, 999).map(lambda number: b"%d" % number)
STEPS = st.lists(
    st.tuples(
        st.just("append"),
        st.sampled_from([-1, -1, 1, 2]),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=4),
        st.sampled_from([0, 0, 2, 4]),
    )
    | st.tuples(st.just("finish"), st.sampled_from([1, 2]), st.booleans())
    | st.tuples(st.just("pass"), st.integers(0, 60), st.integers(0, 80)),
    max_size=40,
)


@given(steps=STEPS, slots=st.sampled_from([3, 5, 100]), merged=st.sampled_from([0, 50, 64 << 10]))
def test_readers_see_the_same_values_after_any_passes(steps: list[tuple[object, ...]], slots: int, merged: int) -> None:
    log = Log(map_slots=slots, merged_bytes=merged)
    now = 1_000
    original: dict[int, Record] = {}
    for step in steps:
        match step:
            case "append", int(producer), list(pairs), int(codec):
                log.append(producer, pairs, codec, now)
                for record in records(log.batches[-1], log.end - len(pairs)):
                    original[record.offset] = record
            case "finish", int(producer), bool(commit):
                log.finish(producer, commit)
            case "pass", int(bound), int(later):
                before = log.view()
                now += later
                log.run(bound, now)
                assert log.view() == before
                assert_sound(log, original)
    for producer in (1, 2):
        log.finish(producer, commit=False)
    expected = log.view()
    log.map_slots = 100
    for _ in range(4):
        log.run(log.end, now)
        now += RETENTION
        assert log.view() == expected
        assert_sound(log, original)
    left = [record for batch in log.batches for record in records(batch, read_header(batch[:61]).base_offset)]
    last = {record.key: record.value for record in left}
    if slots == 3:
        # A batch with more keys than the map keeps its tombstones, and older records of its keys stay.
        last = {key: value for key, value in last.items() if value is not None}
    else:
        assert len(left) == len(expected)
    assert last == expected
    assert log.aborted == []


def assert_sound(log: Log, original: dict[int, Record]) -> None:
    """Records are those that were written, in order, and each transaction with data has its marker after it."""
    previous = -1
    open_producers: set[int] = set()
    for batch in log.batches:
        header = read_header(batch[:61])
        assert header.base_offset > previous
        previous = header.base_offset + header.last_offset_delta
        if header.is_control:
            open_producers.discard(header.producer_id)
            continue
        if header.is_transactional:
            open_producers.add(header.producer_id)
        for record in records(batch, header.base_offset):
            assert record == original[record.offset]
    assert open_producers <= log.open.keys()


@given(st.data())
def test_damaged_batches_are_kept_or_read(data: st.DataObject) -> None:
    batches = [bytearray(batch_of(3 * number, (b"a", b"1"), (b"b", None), (b"c", b"x"))) for number in range(3)]
    for batch in batches:
        for _ in range(data.draw(st.integers(0, 2))):
            batch[data.draw(st.integers(0, len(batch) - 1))] ^= data.draw(st.integers(1, 255))
        if data.draw(st.booleans()):
            batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    offsets = open_offset_map(100, 1 << 20, SEED)
    given_batches = [bytes(batch) for batch in batches]
    added = add_batches(offsets, given_batches)
    found = cleaned_with(offsets, given_batches, set())
    assert added.unreadable <= found.unreadable + 3
    for before, after in zip(given_batches, found.batches, strict=True):
        if after is None or after is before or read_header(after[:61]).is_control:
            continue
        header = read_header(before[:61])
        try:
            records_of([before])
        except BatchError:
            # Without C, the reader takes a record's attributes for a number of variable length.
            continue
        records_of([after])
        try:
            check(before)
        except BatchError:
            assert header.count != header.last_offset_delta + 1 or header.producer_id != -1 or header.attributes
