import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace import entries
from headrace.topics.model import StoredBatch

offsets = st.integers(0, 2**53 - 2)


def as_number(entry_id: str) -> tuple[int, int]:
    time, _, sequence = entry_id.partition("-")
    return int(time), int(sequence)


@given(offsets, st.integers(1, 1_000), st.data())
def test_the_first_entry_at_or_after_the_start_holds_the_offset(base: int, span: int, data: st.DataObject) -> None:
    after = base + span
    inside = data.draw(st.integers(base, after - 1))
    assert as_number(entries.range_start(inside)) <= as_number(entries.id_of(base, after))
    # The batch before it ends at its base, and is not found.
    for earlier in (1, 7):
        assert as_number(entries.id_of(base - earlier, base)) < as_number(entries.range_start(inside))
    assert as_number(entries.id_of(base, after)) <= as_number(entries.range_end(after))
    assert as_number(entries.id_of(base, after)) > as_number(entries.range_end(after - 1))


@given(offsets, st.integers(1, 2**31))
def test_an_id_tells_its_offsets(base: int, span: int) -> None:
    assert entries.offsets_of(entries.id_of(base, base + span).encode()) == (base, base + span)


@pytest.mark.parametrize("text", [b"", b"5", b"a-b", b"5-"])
def test_an_id_of_something_else(text: bytes) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        entries.offsets_of(text)


def test_an_answer_is_decoded() -> None:
    answer = [[b"3-3", [b"b", b"first", b"t", b"9", b"s", b"5"]], [b"4-1", [b"b", b"second", b"t", b"9", b"s", b"11"]]]
    assert entries.decode(answer) == [StoredBatch(0, 3, b"first"), StoredBatch(3, 4, b"second")]
    assert entries.decode([]) == []


def test_a_position_reads_as_everything_below_it_delivered() -> None:
    assert as_number(entries.position_id(5)) > as_number(entries.id_of(4, 5))
    assert as_number(entries.position_id(5)) < as_number(entries.id_of(5, 6))
