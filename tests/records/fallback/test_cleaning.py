"""Maps of offsets: the same in C and in Python."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.accelerator import OffsetMap
from headrace.records.build import build
from headrace.records.fallback.cleaning import PureOffsetMap

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
