from hypothesis import given
from hypothesis import strategies as st

from headrace.records.accelerator import stamp
from headrace.records.build import build
from headrace.storage.layout import entries
from headrace.topics.leader_epochs import EpochRow, LeaderEpochs
from headrace.topics.model import StoredBatch


def as_numbers(entry_id: str) -> tuple[int, int]:
    term, _, following = entry_id.partition("-")
    return int(term), int(following)


@st.composite
def logs(draw: st.DrawFn) -> tuple[LeaderEpochs, list[tuple[int, int, str]]]:
    """Leader epochs, and batches under them as (base offset, next offset, entry id)."""
    rows, batches, offset, term = [], [], draw(st.integers(0, 2**52)), 0
    for _ in range(draw(st.integers(1, 4))):
        term += draw(st.integers(1, 100))
        rows.append(EpochRow(term, offset, term))
        for span in draw(st.lists(st.integers(1, 1_000), max_size=4)):
            batches.append((offset, offset + span, f"{term}-{offset + span}"))
            offset += span
    return LeaderEpochs(rows), batches


@given(logs(), st.data())
def test_the_first_entry_from_the_start_of_a_range_holds_the_offset(
    log: tuple[LeaderEpochs, list[tuple[int, int, str]]], data: st.DataObject
) -> None:
    epochs, batches = log
    for base, following, entry_id in batches:
        inside = data.draw(st.integers(base, following - 1))
        start = as_numbers(entries.range_start(epochs, inside))
        found = [each for each in batches if as_numbers(each[2]) >= start]
        assert found[0] == (base, following, entry_id)
        end = as_numbers(entries.range_end(epochs, following))
        assert [each for each in batches if as_numbers(each[2]) <= end][-1] == (base, following, entry_id)
        assert as_numbers(entries.range_end(epochs, base)) < as_numbers(entry_id)


def test_an_answer_is_decoded() -> None:
    made = []
    for base, count in ((0, 3), (3, 1)):
        batch = build([(None, b"v", 1, ())] * count)
        stamp(batch, base, 7)
        made.append(bytes(batch))
    answer = [[b"7-3", [b"b", made[0], b"t", b"9", b"s", b"5"]], [b"9-4", [b"b", made[1], b"t", b"9", b"s", b"11"]]]
    assert entries.decode(answer) == [StoredBatch(0, 3, made[0]), StoredBatch(3, 4, made[1])]
    assert entries.decode([]) == []


def test_nothing_lies_before_the_first_offset() -> None:
    assert entries.position_id(LeaderEpochs([EpochRow(5, 0, 5)]), 0) == "0-0"
