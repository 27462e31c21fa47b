"""Records without key: the same in C and in Python."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import accelerator
from headrace.records.build import build
from headrace.records.errors import CorruptBatch
from headrace.records.fallback import checks
from headrace.records.fallback.header import Buffer

keys = st.lists(st.none() | st.binary(max_size=100), min_size=1, max_size=200)


def section(found: list[bytes | None]) -> memoryview:
    headers = (("h", b"x"), ("n", None))
    return memoryview(build([(key, None if n % 3 else b"v" * n, n, headers[: n % 3]) for n, key in enumerate(found)]))[
        61:
    ]


def outcome(function: object, payload: Buffer, count: int, most: int) -> tuple[list[int], int] | None:
    assert callable(function)
    try:
        found: tuple[list[int], int] = function(payload, count, count - 1, most)
    except CorruptBatch:
        return None
    return found


@given(keys, st.integers(0, 250))
def test_both_implementations_find_the_records_without_key(found: list[bytes | None], most: int) -> None:
    indexes = [index for index, key in enumerate(found) if key is None]
    payload = section(found)
    for function in (accelerator.keyless, checks.keyless):
        assert function(payload, len(found), len(found) - 1, most) == (indexes[:most], len(indexes))


@given(keys, st.data())
def test_a_damaged_section_is_read_within_its_bounds_or_refused(found: list[bytes | None], data: st.DataObject) -> None:
    payload = bytearray(section(found))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    for function in (accelerator.keyless, checks.keyless):
        result = outcome(function, payload, len(found), 10)
        if result is not None:
            indexes, total = result
            assert indexes == sorted(set(indexes))
            assert len(indexes) == min(total, 10)
            assert all(0 <= index < len(found) for index in indexes)


@pytest.mark.usefixtures("implementation")
def test_wrong_counts_are_refused() -> None:
    payload = section([b"k", None])
    for count, size in ((3, len(payload)), (-1, len(payload)), (2, len(payload) - 1), (1 << 30, len(payload))):
        with pytest.raises(CorruptBatch):
            accelerator.keyless(payload[:size], count, max(0, count - 1), 10)


@pytest.mark.usefixtures("implementation")
def test_a_large_section_is_read_as_a_small_one() -> None:
    found = [None if n % 1_000 == 0 else b"k" * 100 for n in range(5_000)]
    assert accelerator.keyless(section(found), 5_000, 4_999, 3) == ([0, 1_000, 2_000], 5)
