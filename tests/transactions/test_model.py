from uuid import UUID

from tests.harness.transactions import P0, P1, stored_at

from headrace.transactions.model import NEW, GroupId, PartitionId, TransactionState


def test_participants_survive_the_stored_form() -> None:
    other = PartitionId(UUID(int=1), 12)
    stored = NEW.with_participants([P1, GroupId("g"), other, P0, GroupId("a")])

    assert stored.partitions == {UUID(int=1): (12,), P0.topic_id: (0, 1)}
    assert stored.groups == ("a", "g")
    assert set(stored.participants()) == {P0, P1, other, GroupId("g"), GroupId("a")}


def test_states_are_open_until_all_participants_have_ended() -> None:
    assert {state for state in TransactionState if state.open} == {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    }
    assert [state for state in TransactionState if state.commits] == [
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ]


def test_the_next_producer_is_the_rotated_one_if_there_is_one() -> None:
    prepared = stored_at(TransactionState.PREPARE_COMMIT, 32_767, 2, next_producer_id=40)

    assert prepared.producer_after == (40, 0)
    assert stored_at(TransactionState.EMPTY).producer_after == (9, 5)
