"""Results of requests of a transactional ID, and effects for its runner (`headrace.machines.effects`)."""

import msgspec

from headrace.machines import effects as machines
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, End, Init, Lookup, Request, TimerKind, Verify
from headrace.transactions.model import NO_EPOCH, NO_PRODUCER_ID, Participant, TransactionChange


class InitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Producer ID and epoch of an initialized producer."""

    error: TransactionError | None = None
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


class AddResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an addition of participants: all or none."""

    error: TransactionError | None = None
    number: int = 0
    """Number of the transaction. A participant that has ended it or a later one must reject the producer's data."""


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification. `error` applies to all participants."""

    error: TransactionError | None = None
    missing: frozenset[Participant] = frozenset()
    """Participants that are not in the transaction: TRANSACTION_ABORTABLE."""
    number: int = 0
    """As in `AddResult`."""


class LookupResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a lookup. Without an error, `open` is reliable."""

    error: TransactionError | None = None
    open: bool = True


class EndResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of EndTxn, with the producer ID and epoch of the next transaction."""

    error: TransactionError | None = None
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


Result = InitResult | AddResult | VerifyResult | LookupResult | EndResult


class EndParticipants(machines.Command, frozen=True, kw_only=True):
    """Write markers, and make pending offsets committed or drop them. Then send `Ended`."""

    producer_id: int
    epoch: int
    """Epoch of the marker. It fences lower ones."""
    commit: bool
    number: int
    """Number of the transaction. A participant ignores it if it has ended this or a later one of the producer."""
    copies: int
    version: int
    participants: tuple[Participant, ...]


class NewProducerId(machines.Command, frozen=True):
    """Allocate a producer ID, and send `ProducerIdAllocated`."""


Effect = machines.Effect[TransactionChange, TimerKind, Result]
"""An effect for the runner."""


def refusal(request: Request, error: TransactionError) -> Result:
    """Return the result that rejects a request."""
    match request:
        case Init():
            return InitResult(error=error)
        case Add():
            return AddResult(error=error)
        case Verify():
            return VerifyResult(error=error)
        case Lookup():
            return LookupResult(error=error)
        case End():
            return EndResult(error=error)
