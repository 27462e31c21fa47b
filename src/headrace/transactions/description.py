"""A transactional ID as shown to tools."""

from uuid import UUID

import msgspec

from headrace.transactions.model import StoredTransaction, TransactionState


class TransactionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A transactional ID, for DescribeTransactions and ListTransactions."""

    transactional_id: str
    state: TransactionState
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    """Start of the transaction (wall clock), or -1."""
    partitions: dict[UUID, tuple[int, ...]]
    groups: tuple[str, ...]

    def running_ms(self, now_ms: int) -> int | None:
        """Return the age of the transaction, or None if none is open."""
        return now_ms - self.started_ms if self.state.open and self.started_ms >= 0 else None


def described(name: str, stored: StoredTransaction) -> TransactionDescription:
    """Describe a transactional ID. Producer ID and epoch are those that its client knows or learns next."""
    producer_id, epoch = stored.producer_after
    return TransactionDescription(
        transactional_id=name,
        state=stored.state,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=stored.timeout_ms,
        started_ms=stored.started_ms if stored.state.open else -1,
        partitions=dict(stored.partitions),
        groups=stored.groups,
    )
