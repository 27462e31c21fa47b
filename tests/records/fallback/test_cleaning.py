"""Maps of offsets: the same in C and in Python."""

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.accelerator import OffsetMap
from headrace.records.build import build
from headrace.records.fallback.cleaning import PureOffsetMap
from headrace.records.fallback.header import Buffer

MAPS: list[Callable[[int, bytes], OffsetMap]] = [accelerator.open_offset_map, PureOffsetMap]
SEED = bytes(range(16))
KEYS = st.none() | st.integers(0, 60).map(lambda number: b"%d" % number)
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=20), min_size=1, max_size=12)


def log_of(batches: list[list[bytes | None]], codec: int = 0) -> list[bytes]:
    found, offset = [], 0
    for keys in batches:
        found.append(bytes(build([(key, b"v", 5, ()) for key in keys], base_offset=offset, codec=codec)))
        offset += len(keys)
    return found


@given(BATCHES, st.integers(2, 80))
def test_a_map_has_the_last_offset_of_each_key_until_it_is_full(batches: list[list[bytes | None]], slots: int) -> None:
    log = log_of(batches)
    limit = slots * 9 // 10
    expected: dict[bytes, int] = {}
    stopped, offset = len(log), 0
    for index, keys in enumerate(batches):
        if len(expected) >= limit:
            stopped = index
            break
        was_empty = not expected
        fits = True
        for delta, key in enumerate(keys):
            if key is None:
                continue
            if key not in expected and len(expected) >= limit:
                fits = False
                break
            expected[key] = offset + delta
        if not fits and not was_empty:
            stopped = index
            break
        offset += len(keys)
    for kind in MAPS:
        offsets = kind(slots, SEED)
        assert offsets.add(log, [None] * len(log), bytes(len(log))) == (stopped, [])
        assert {key: offsets.get(key) for key in expected} == expected
        assert offsets.get(b"other") is None
        assert len(offsets) == len(expected)
        assert offsets.full == (len(expected) >= limit)
        assert offsets.memory_bytes == slots * 24


@pytest.mark.parametrize("kind", MAPS)
def test_what_is_no_map(kind: Callable[[int, bytes], OffsetMap]) -> None:
    for slots, seed in ((1, SEED), (-5, SEED), (10, SEED[1:])):
        with pytest.raises(ValueError, match="2 slots or more, and a seed of 16 bytes"):
            kind(slots, seed)


ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from([b"a", b"b", b"long key of many bytes"]) | st.binary(max_size=3),
        st.none() | st.binary(max_size=3),
        st.integers(-1, 2**52) | st.sampled_from([-(2**62), 2**62]),
        st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


@given(
    st.lists(ROWS, min_size=1, max_size=8),
    st.sets(st.integers(0, 7)),
    st.integers(2, 12),
    st.booleans(),
    st.integers(0, 40),
)
def test_both_implementations_clean_alike(
    rows: list[Any], aborted: set[int], slots: int, clean_segment: bool, now: int
) -> None:
    log: list[bytes] = []
    for fields in rows:
        offset = 10 * len(log)
        log.append(bytes(build(fields, base_offset=offset)))
    flags = bytes(index in aborted for index in range(len(log)))
    sections: list[Buffer | None] = [None] * len(log)
    answers = []
    for kind in MAPS:
        offsets = kind(slots, SEED)
        added = offsets.add(log, sections, flags)
        once = offsets.clean(log, sections, flags, now, now + 10, clean_segment)
        left = [batch for batch in once[0] if batch is not None]
        again = offsets.clean(left, [None] * len(left), bytes(len(left)), 20, 30, True)
        answers.append((added, once, again))
    assert answers[0] == answers[1]


@given(ROWS, st.integers(-5, 60))
def test_decompressed_sections_are_read_in_place_of_compressed_ones(fields: list[Any], count: int) -> None:
    plain = bytes(build(fields))
    batch = bytes(build(fields, codec=4))
    for kind in MAPS:
        offsets = kind(100, SEED)
        assert offsets.add([batch], [None], bytes(1)) == (1, [0])
        assert offsets.add([batch], [plain[61:]], bytes(1)) == (1, [])
        assert len(offsets) == len({key for key, *_ in fields if key is not None})


@pytest.mark.parametrize("kind", MAPS)
def test_lists_of_other_lengths_are_refused(kind: Callable[[int, bytes], OffsetMap]) -> None:
    offsets = kind(100, SEED)
    batch = bytes(build([(b"a", b"v", 5, ())]))
    for sections, flags in (([], bytes(1)), ([None], b""), ([None, None], bytes(2))):
        with pytest.raises(ValueError):  # noqa: PT011  # zip's own
            offsets.add([batch], sections, flags)
        with pytest.raises(ValueError):  # noqa: PT011
            offsets.clean([batch], sections, flags, 0, 0, False)


@pytest.mark.skipif(not accelerator.available, reason="threads run in it")
def test_one_thread_at_a_time_uses_a_map() -> None:
    log = log_of([[b"%d" % (number % 999) for number in range(20_000)]] * 20)
    offsets = accelerator.open_offset_map(2_000, SEED)
    arguments = log, [None] * len(log), bytes(len(log))
    started = Event()

    def work() -> None:
        started.set()
        for _ in range(50):
            with suppress(RuntimeError):
                offsets.clean(*arguments, 0, 0, False)

    thread = Thread(target=work)
    thread.start()
    started.wait()
    refused = 0
    while thread.is_alive():
        try:
            offsets.get(b"1")
        except RuntimeError:
            refused += 1
    thread.join()
    assert refused
    assert offsets.add(*arguments) == (20, [])
