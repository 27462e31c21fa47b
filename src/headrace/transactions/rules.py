"""Decisions about requests by the state of a transactional ID, as in Kafka 4.3.1. Without effects."""

from enum import Enum, auto

from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init, Verify
from headrace.transactions.model import (
    FENCE_EPOCH,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TV2,
    StoredTransaction,
    TransactionState,
)

VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
    ),
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # The other three precede an empty abort of the second protocol.
    TransactionState.PREPARE_ABORT: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }
    ),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""State -> states that may precede it. Kafka's PrepareEpochFence and Dead do not outlive an event here."""


class InitStep(Enum):
    """What an accepted InitProducerId does."""

    ABORT = auto()
    """Fence the producer and abort its transaction. The client repeats the request."""
    REPEAT = auto()
    """Return the same producer again: the response to an earlier request was lost."""
    BUMP = auto()
    """Return the next epoch."""
    ROTATE = auto()
    """Return a new producer ID: the ID is new, or its epochs are exhausted."""


class EndStep(Enum):
    """What an accepted EndTxn does."""

    PREPARE = auto()
    """Decide the outcome."""
    REPEAT = auto()
    """Return success again: the response to an earlier request was lost."""
    EMPTY_ABORT = auto()
    """Bump the epoch, because no transaction exists."""


def on_init(  # noqa: PLR0911 - one line per rule
    current: StoredTransaction, event: Init, max_timeout_ms: int
) -> InitStep | TransactionError:
    """Decide on InitProducerId."""
    if not 0 < event.timeout_ms <= max_timeout_ms:
        return TransactionError.INVALID_TRANSACTION_TIMEOUT
    continues = NO_EPOCH not in (event.epoch, current.producer_epoch)
    repeats = continues and _repeats_init(current, event)
    if continues and not repeats and event.producer_id != current.producer_id:
        return TransactionError.PRODUCER_FENCED
    if current.state.prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    if continues and (repeats or event.epoch != current.producer_epoch):
        # In an ongoing transaction, an earlier epoch belongs to a fenced producer.
        if not repeats or current.state.open:
            return TransactionError.PRODUCER_FENCED
        # No client may receive the epoch of a fence.
        return InitStep.ROTATE if current.producer_epoch == FENCE_EPOCH else InitStep.REPEAT
    if current.state is TransactionState.ONGOING:
        return InitStep.ABORT
    return InitStep.ROTATE if current.producer_epoch in (NO_EPOCH, LAST_EPOCH, FENCE_EPOCH) else InitStep.BUMP


def _repeats_init(current: StoredTransaction, event: Init) -> bool:
    if event.epoch != current.last_epoch:
        return False
    if event.producer_id == current.producer_id:
        return event.epoch != current.producer_epoch
    return event.producer_id == current.previous_producer_id and current.producer_epoch == 0


def on_use(current: StoredTransaction, event: Add | Verify) -> TransactionError | None:
    """Decide whether a producer may use its transaction now."""
    if current.producer_id == NO_PRODUCER_ID or event.producer_id != current.producer_id:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    if event.epoch != current.producer_epoch or event.epoch == FENCE_EPOCH:
        return TransactionError.PRODUCER_FENCED
    if current.state.prepared:
        return TransactionError.CONCURRENT_TRANSACTIONS
    return None


def on_end(current: StoredTransaction, event: End) -> EndStep | TransactionError:
    """Decide on EndTxn. An epoch of another transaction never ends the current one (KAFKA-9600)."""
    if current.producer_id == NO_PRODUCER_ID:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    return _on_end_2(current, event) if event.version >= TV2 else _on_end_1(current, event)


def _on_end_1(current: StoredTransaction, event: End) -> EndStep | TransactionError:
    if event.producer_id != current.producer_id:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    if event.epoch != current.producer_epoch:
        return TransactionError.PRODUCER_FENCED
    state = current.state
    if state is TransactionState.ONGOING:
        return EndStep.PREPARE
    if state is TransactionState.EMPTY or state.commits != event.commit:
        return TransactionError.INVALID_TXN_STATE
    return TransactionError.CONCURRENT_TRANSACTIONS if state.prepared else EndStep.REPEAT


def _on_end_2(current: StoredTransaction, event: End) -> EndStep | TransactionError:  # noqa: PLR0911 - one line per rule
    state = current.state
    # The client knows the epoch before the bump, and the producer ID before the rotation. Kafka does not compare
    # `last_epoch`: a fenced producer can get the epoch of a later one of the first protocol.
    last = current.version >= TV2 and event.epoch == current.last_epoch
    bumped = last and event.producer_id == current.producer_id and event.epoch + 1 == current.producer_epoch
    rotated = (
        last
        and event.producer_id == current.previous_producer_id
        and event.epoch == LAST_EPOCH
        and current.producer_epoch == 0
    )
    if event.producer_id != current.producer_id and not rotated:
        return TransactionError.INVALID_PRODUCER_ID_MAPPING
    if state.prepared:
        if not bumped:
            return TransactionError.PRODUCER_FENCED
        return TransactionError.CONCURRENT_TRANSACTIONS if state.commits == event.commit else _contradiction(current)
    repeats = state not in (TransactionState.EMPTY, TransactionState.ONGOING) and (bumped or rotated)
    if repeats:
        return EndStep.REPEAT if state.commits == event.commit else _contradiction(current)
    if event.producer_id != current.producer_id or event.epoch != current.producer_epoch:
        return TransactionError.PRODUCER_FENCED
    if state is TransactionState.ONGOING:
        return EndStep.PREPARE
    return TransactionError.INVALID_TXN_STATE if event.commit else EndStep.EMPTY_ABORT


def _contradiction(current: StoredTransaction) -> TransactionError:
    """Return the error for the other outcome. A commit may meet an abort by the coordinator (KAFKA-20785)."""
    return TransactionError.PRODUCER_FENCED if current.fenced else TransactionError.INVALID_TXN_STATE
