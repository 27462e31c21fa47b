"""The JSON form of a transactional ID's state, and the state in storage after each accepted change."""

from collections.abc import Iterable

import msgspec

from headrace.transactions.model import (
    NEW,
    NO_EPOCH,
    NO_PRODUCER_ID,
    DropTransaction,
    SaveTransaction,
    StoredTransaction,
    TransactionChange,
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(StoredTransaction)


def encode(state: StoredTransaction) -> bytes:
    """Encode as JSON."""
    return _encoder.encode(state)


def decode(text: bytes) -> StoredTransaction:
    """Decode the JSON of a state. Raises ValueError, also for a state that cannot occur.

    A wrong state would commit or abort other transactions than those of the client.
    """
    stored = _decoder.decode(text)
    if stored.producer_id == NO_PRODUCER_ID or stored.producer_epoch == NO_EPOCH:
        raise ValueError("a stored transactional ID has a producer")
    if not stored.state.open and (stored.partitions or stored.groups):
        raise ValueError(f"participants in the state {stored.state.value}")
    if stored.state.open and not stored.number:
        raise ValueError(f"the state {stored.state.value} without a transaction")
    if stored.next_producer_id != NO_PRODUCER_ID and not stored.state.prepared:
        raise ValueError(f"a next producer ID in the state {stored.state.value}")
    return stored


class Snapshot:
    """State of a transactional ID in storage."""

    def __init__(self, stored: StoredTransaction = NEW) -> None:
        self.stored = stored

    def apply(self, changes: Iterable[TransactionChange]) -> None:
        """Apply changes that storage has accepted."""
        for change in changes:
            match change:
                case SaveTransaction(state):
                    self.stored = state
                case DropTransaction():
                    self.stored = NEW

    @property
    def nothing(self) -> bool:
        """Whether storage has nothing of the transactional ID."""
        return self.stored is NEW
