"""Runs of offsets: replacing, merging and finding them."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.groups.sharing.runs import Run, Runs
from headrace.groups.sharing.state import RecordState, ShareState

kinds = st.sampled_from([(RecordState.AVAILABLE, 1), (RecordState.AVAILABLE, 2), (RecordState.ACQUIRED, 1)])
spans = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), kinds), min_size=1, max_size=5)


@given(st.lists(spans, max_size=8))
def test_runs_cover_all_offsets_and_equal_neighbors_are_one(
    replacements: list[list[tuple[int, int, tuple[RecordState, int]]]],
) -> None:
    runs, model = Runs(5), dict[int, tuple[RecordState, int]]()
    for each in replacements:
        at, new = 5, []
        for gap, length, (state, count) in each:
            at = min(at + gap, max(runs.speo, at))
            new.append(Run(at, at + length - 1, state, count))
            model.update(dict.fromkeys(range(at, at + length), (state, count)))
            at += length
        runs.replace(new)
        kept = list(runs)
        assert {o: (run.state, run.count) for run in kept for o in range(run.first, run.last + 1)} == model
        assert all(a.last + 1 == b.first and not b.continues(a) for a, b in pairwise(kept))
        assert runs.speo == 5 + len(model)
        for offset in range(5, runs.speo):
            assert kept[runs.index(offset)].first <= offset <= kept[runs.index(offset)].last
        assert runs.index(runs.speo) == len(runs) == len(kept)


def test_parts_within_bounds() -> None:
    runs = Runs.load(ShareState.decode("0 10 5a1,5a2"))
    assert [(run.first, run.last) for run in runs.within(12, 17)] == [(12, 14), (15, 17)]
    assert [(run.first, run.last) for run in runs.within(0, 99)] == [(10, 14), (15, 19)]
    assert list(runs.within(20, 99)) == []


def test_a_cut_inside_a_run_keeps_the_rest() -> None:
    runs = Runs.load(ShareState.decode("0 10 5a1,5d,5a2"))
    runs.cut(12)
    assert runs.stored(4).encode() == "4 12 3a1,5d,5a2"
    runs.cut(15)
    assert (runs.spso, runs.speo) == (20, 25)
    runs.cut(3)
    assert runs.spso == 20


def test_a_stored_state_begins_after_what_is_done() -> None:
    assert Runs.load(ShareState.decode("0 10 5d,5a1")).stored(0).encode() == "0 15 5a1"
