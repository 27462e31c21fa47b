import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.topics.leader_epochs import EpochRow, LeaderEpochs

THREE = LeaderEpochs([EpochRow(3, 0, 4), EpochRow(3, 10, 5), EpochRow(7, 20, 7)])


def test_a_log_that_was_opened_has_a_row() -> None:
    with pytest.raises(ValueError, match="at least one"):
        LeaderEpochs([])


def test_an_offset_has_the_term_of_its_row() -> None:
    assert [THREE.term_of(offset) for offset in (0, 9, 10, 19, 20, 10**15)] == [4, 4, 5, 5, 7, 7]


def test_the_first_row_counts_for_what_was_trimmed_too() -> None:
    epochs = LeaderEpochs([EpochRow(3, 10, 4)])
    assert (epochs.term_of(0), epochs.term_of(9)) == (4, 4)


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(-1, (-1, -1)), (3, (3, 20)), (4, (3, 20)), (6, (3, 20)), (7, (7, 25)), (8, (-1, -1))],
)
def test_the_end_of_an_epoch(epoch: int, answer: tuple[int, int]) -> None:
    """KIP-320: the largest epoch up to the one asked for; a client beyond it has records that are gone."""
    assert THREE.end_of(epoch, 25) == answer


def test_one_that_was_trimmed_ends_where_the_oldest_begins() -> None:
    """A consumer that has read all of it goes on there: without one it would apply its reset policy."""
    assert LeaderEpochs([EpochRow(3, 10, 4), EpochRow(7, 20, 7)]).end_of(2, 25) == (2, 10)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8), st.integers(0, 30))
def test_against_a_list_of_records(steps: list[tuple[int, int]], asked: int) -> None:
    """Openings that raise the epoch by so much and write so many records."""
    epoch, offset, rows, epochs = 1, 0, [], []
    for term, (raised, count) in enumerate(steps, 1):
        epoch += raised
        rows.append(EpochRow(epoch, offset, term))
        epochs += [(epoch, term)] * count
        offset += count
    found = LeaderEpochs(rows)
    assert [found.term_of(place) for place in range(offset)] == [term for _, term in epochs]
    upto = [row.epoch for row in rows if row.epoch <= asked]
    if asked > epoch:
        assert found.end_of(asked, offset) == (-1, -1)
    else:
        end = next((place for place, (of, _) in enumerate(epochs) if of > asked), offset)
        assert found.end_of(asked, offset) == (upto[-1] if upto else asked, end)


def test_state_of_a_log_ends_at_the_start_of_a_later_epoch() -> None:
    epochs = LeaderEpochs([EpochRow(5, 10, 5), EpochRow(9, 60, 9)])
    assert epochs.kept(100, 9) == 100
    assert epochs.kept(100, 5) == epochs.kept(100, 7) == 60
    assert epochs.kept(40, 5) == 40
    assert epochs.kept(100, 3) == 10
    assert epochs.kept(100, 10) == 0, "the opening was lost, too: nobody knows what else"
