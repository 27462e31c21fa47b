"""Errors of transactions, without codes. Each API maps them in one table."""

from enum import Enum, auto


class TransactionError(Enum):
    """A rejected request of a transaction, with Kafka's names."""

    INVALID_REQUEST = auto()
    """An empty transactional ID, or a new one that is too long."""
    INVALID_TRANSACTION_TIMEOUT = auto()
    """The timeout is below 1 ms or above `transaction.max.timeout.ms`."""
    INVALID_PRODUCER_ID_MAPPING = auto()
    """The producer ID does not belong to the transactional ID."""
    PRODUCER_FENCED = auto()
    """Another epoch than the current one. InitProducerId below version 4 responds with INVALID_PRODUCER_EPOCH."""
    CONCURRENT_TRANSACTIONS = auto()
    """The previous transaction is ending, or a change is in progress. Retry."""
    INVALID_TXN_STATE = auto()
    """The transaction cannot change in this way."""
    TRANSACTION_ABORTABLE = auto()
    """A partition or group is not in the transaction. Versions that precede this error use INVALID_TXN_STATE."""
    POLICY_VIOLATION = auto()
    """The server has its maximum of transactional IDs, or the transaction its maximum of participants."""
    COORDINATOR_NOT_AVAILABLE = auto()
    """Storage rejected a change. Retry."""
    COORDINATOR_LOAD_IN_PROGRESS = auto()
    """The coordinator is loading the transactional ID. Retry."""
    NOT_COORDINATOR = auto()
    """Another broker coordinates the transactional ID. Find it again."""
    TRANSACTIONAL_ID_NOT_FOUND = auto()
    """No such transactional ID (DescribeTransactions)."""


RETRIABLE = frozenset(
    {
        TransactionError.CONCURRENT_TRANSACTIONS,
        TransactionError.COORDINATOR_NOT_AVAILABLE,
        TransactionError.COORDINATOR_LOAD_IN_PROGRESS,
        TransactionError.NOT_COORDINATOR,
    }
)
"""Errors after which a client repeats the same request."""
