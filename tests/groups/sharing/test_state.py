"""The stored text of a share partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.sharing.state import NOT_BEGUN, RecordState, ShareState, StoredRun

runs = st.one_of(
    st.builds(StoredRun, st.integers(1, 2**62), st.just(RecordState.DONE)),
    st.builds(
        StoredRun,
        st.integers(1, 2**62),
        st.sampled_from([RecordState.AVAILABLE, RecordState.DEAD]),
        st.integers(0, 10),
    ),
)
states = st.builds(
    ShareState, st.integers(0, 2**31 - 1), st.integers(NOT_BEGUN, 2**62), st.lists(runs, max_size=9).map(tuple)
)


@given(states)
def test_a_text_is_read_as_the_state_that_was_written(state: ShareState) -> None:
    assert ShareState.decode(state.encode()) == state


def test_the_text_of_old_states_stays_readable() -> None:
    text = "3 100 2a1,1d,4x5,1d"
    state = ShareState(
        3,
        100,
        (
            StoredRun(2, RecordState.AVAILABLE, 1),
            StoredRun(1, RecordState.DONE),
            StoredRun(4, RecordState.DEAD, 5),
            StoredRun(1, RecordState.DONE),
        ),
    )
    assert (state.encode(), ShareState.decode(text)) == (text, state)
    assert ShareState.decode("0 -1") == ShareState(0, NOT_BEGUN)
    assert state.done_from(0) == 2


@pytest.mark.parametrize(
    "text", ["", "1", "1 2 3 4", "x 1", "1 x", "1 2 ", "1 2 3", "1 2 0d", "1 2 3d,", "1 2 3q1", "1 02"]
)
def test_a_damaged_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"share state|damaged|invalid literal"):
        ShareState.decode(text)


@pytest.mark.parametrize(("offset", "done"), [(0, 7), (10, 7), (12, 7), (13, 6), (17, 5), (19, 3), (22, 0), (99, 0)])
def test_what_retention_removed_is_not_counted_as_done(offset: int, done: int) -> None:
    """Otherwise, the lag would be too low by it."""
    assert ShareState.decode("1 10 2a1,2d,3a1,5d").done_from(offset) == done
