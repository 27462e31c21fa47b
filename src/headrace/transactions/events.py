"""Events of a transactional ID.

`token` identifies a waiting request, uniquely for its transactional ID. Each event with a token gets exactly one
`Reply` effect, at once or later.
"""

from collections.abc import Hashable
from enum import Enum
from uuid import UUID

import msgspec

from headrace.transactions.model import NO_EPOCH, NO_PRODUCER_ID, TV1, Participant


class TimerKind(Enum):
    """Timers of a transactional ID. Setting one again moves it."""

    TRANSACTION = "transaction"
    """The end of the transaction's time."""
    RESPONSE = "response"
    """The longest time that EndTxn waits for participants."""
    RETRY = "retry"
    """The next call of participants that have not ended."""
    COMPLETE = "complete"
    """The write of the complete state of an idle ID."""
    EXPIRY = "expiry"
    """The next check whether the transactional ID is used."""


class Init(msgspec.Struct, frozen=True, kw_only=True):
    """InitProducerId: fence earlier producers of the transactional ID, and abort their transaction."""

    token: Hashable
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    """Producer that continues after an error (KIP-360), or -1."""


class Add(msgspec.Struct, frozen=True, kw_only=True):
    """Add participants to the transaction, which may begin it.

    AddPartitionsToTxn and AddOffsetsToTxn of the first protocol, or the leader's and the group's request of the second.
    """

    token: Hashable
    producer_id: int
    epoch: int
    participants: tuple[Participant, ...]
    version: int = TV1
    copies: int = 1
    """Largest `min.insync.replicas` of these participants."""


class Verify(msgspec.Struct, frozen=True, kw_only=True):
    """Return whether participants are in the ongoing transaction. A log asks before a producer's first batch."""

    token: Hashable
    producer_id: int
    epoch: int
    participants: tuple[Participant, ...]


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Return whether a transaction of a producer may still end at a participant.

    A recovered group asks for its pending offsets, and a leader for a transaction that is open for long.
    """

    token: Hashable
    producer_id: int
    epoch: int
    participant: Participant


class End(msgspec.Struct, frozen=True, kw_only=True):
    """EndTxn: commit or abort the transaction."""

    token: Hashable
    producer_id: int
    epoch: int
    commit: bool
    version: int = TV1


class Ended(msgspec.Struct, frozen=True):
    """One call of participants is over. Those that are not named have not ended."""

    number: int
    participants: tuple[Participant, ...]


class TopicGone(msgspec.Struct, frozen=True):
    """A topic was deleted. Its partitions need no marker. No reply."""

    topic_id: UUID


class ProducerIdAllocated(msgspec.Struct, frozen=True):
    """Response to the effect `NewProducerId`."""

    producer_id: int | None
    """None: storage did not respond."""


class TimerFired(msgspec.Struct, frozen=True):
    """A timer's deadline has passed."""

    key: TimerKind


Request = Init | Add | Verify | Lookup | End
Event = Request | Ended | TopicGone | ProducerIdAllocated | TimerFired
