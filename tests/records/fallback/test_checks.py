"""Records without key and references to schemas: the same in C and in Python."""

import contextlib

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


GUID = b"\1" + bytes(range(16))
parts = (
    st.none()
    | st.binary(max_size=8)
    | st.integers(0, 5).map(lambda number: b"\0\0\0\0%c" % number)
    | st.sampled_from([GUID, GUID[:16], GUID + b"x", b"\0\0\0\0\7more"])
)
headers = st.lists(st.tuples(st.sampled_from(["__value_schema_id", "__key_schema_id", "other", ""]), parts), max_size=3)
rows = st.lists(st.tuples(parts, parts, headers), min_size=1, max_size=60)


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


@given(rows, st.booleans(), st.integers(0, 5), st.integers(0, 5))
def test_both_implementations_find_the_same_schemas(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    of_value: bool,
    most_schemas: int,
    most_malformed: int,
) -> None:
    payload = memoryview(build([(key, value, 5, tuple(headers)) for key, value, headers in found]))[61:]
    header = b"__value_schema_id" if of_value else b"__key_schema_id"
    arguments = payload, len(found), len(found) - 1, of_value, header, most_schemas, most_malformed
    compiled = accelerator.schemas(*arguments)
    assert compiled == checks.schemas(*arguments)
    named, malformed, malformed_count, excess = compiled
    present = sum((value if of_value else key) is not None for key, value, _ in found)
    counted = sum(number for _, _, number in named) + malformed_count
    assert counted == present if excess < 0 else counted < present
    assert len(named) <= most_schemas
    assert len(malformed) == min(malformed_count, most_malformed)


@given(rows, st.data())
def test_references_in_a_damaged_section_stay_within_it(
    found: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]], data: st.DataObject
) -> None:
    payload = bytearray(memoryview(build([(key, value, 5, tuple(some)) for key, value, some in found]))[61:])
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    for function in (accelerator.schemas, checks.schemas):
        with contextlib.suppress(CorruptBatch):
            named, malformed, _, _ = function(payload, len(found), len(found) - 1, True, b"__value_schema_id", 3, 3)
            assert all(reference in payload for reference, _, _ in named)
            assert all(0 <= index < len(found) for index in malformed)
