import itertools

import pytest

from headrace.groups.classic.states import PREDECESSORS, GroupState, IllegalTransitionError, check_transition

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
LEGAL = {
    (EMPTY, PREPARING),
    (PREPARING, COMPLETING),
    (COMPLETING, STABLE),
    (COMPLETING, PREPARING),
    (STABLE, PREPARING),
    (PREPARING, EMPTY),
    *((state, DEAD) for state in (EMPTY, PREPARING, COMPLETING, STABLE)),
}


def test_the_states_have_kafkas_names() -> None:
    names = ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
    assert [state.value for state in GroupState] == names


def test_every_state_has_its_predecessors() -> None:
    assert set(PREDECESSORS) == set(GroupState)


@pytest.mark.parametrize(("old", "new"), list(itertools.product(GroupState, repeat=2)))
def test_only_legal_transitions_pass(old: GroupState, new: GroupState) -> None:
    if (old, new) in LEGAL:
        check_transition(old, new)
    else:
        with pytest.raises(IllegalTransitionError, match=f"from {old.value} to {new.value}"):
            check_transition(old, new)
