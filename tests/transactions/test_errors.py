from headrace.transactions.errors import RETRIABLE, TransactionError


def test_a_fenced_producer_does_not_retry_and_a_moved_one_does() -> None:
    assert TransactionError.PRODUCER_FENCED not in RETRIABLE
    assert TransactionError.NOT_COORDINATOR in RETRIABLE
