from tests.harness.transactions import P0, stored_at

from headrace.transactions.description import described
from headrace.transactions.model import TransactionState


def test_an_open_transaction_has_an_age_and_partitions() -> None:
    shown = described("id", stored_at(TransactionState.ONGOING, started_ms=1_000))

    assert (shown.transactional_id, shown.state.value, shown.producer_id) == ("id", "Ongoing", 9)
    assert shown.partitions == {P0.topic_id: (0,)}
    assert shown.running_ms(1_500) == 500


def test_a_completed_transaction_has_no_age() -> None:
    assert described("id", stored_at(TransactionState.COMPLETE_ABORT, started_ms=7)).running_ms(9) is None


def test_a_rotation_shows_the_producer_that_the_client_uses_next() -> None:
    shown = described("id", stored_at(TransactionState.PREPARE_COMMIT, 32_767, 2, next_producer_id=40))

    assert (shown.producer_id, shown.producer_epoch) == (40, 0)
