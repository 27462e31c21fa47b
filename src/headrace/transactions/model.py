"""A transactional ID's state, its participants and its limits."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Annotated
from uuid import UUID

import msgspec

NO_PRODUCER_ID = -1
NO_EPOCH = -1
LAST_EPOCH = 32_766
"""Largest epoch of a client. The next bump needs another producer ID."""
FENCE_EPOCH = 32_767
"""Epoch of markers only: it fences a producer at `LAST_EPOCH`."""
TV1, TV2 = 1, 2
"""Versions of the protocol: KIP-98, and KIP-890 with an epoch for each transaction."""


class TransactionState(Enum):
    """State of a transactional ID, with Kafka's names."""

    EMPTY = "Empty"
    """The producer is initialized and has begun no transaction."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed. Some participants may not know."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """All participants have ended the transaction."""
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def prepared(self) -> bool:
        """Whether the outcome is decided and participants are ending."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def open(self) -> bool:
        """Whether a transaction exists that has not ended everywhere."""
        return self.prepared or self is TransactionState.ONGOING

    @property
    def commits(self) -> bool:
        """Whether the outcome is or was a commit."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times (ms) of all transactional IDs of a server."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    max_ids: int = 100_000  # headrace.max.transactional.ids: of one virtual cluster
    max_participants: int = 20_000
    """Partitions and groups of one transaction. All are in one stored document."""
    response_ms: int = 250
    """Time that EndTxn waits for the participants. The outcome is decided either way."""
    complete_ms: int = 5_000
    """Time after which an idle ID's complete state is written. The next transaction writes it sooner."""
    retry_ms: int = 50
    max_retry_ms: int = 2_000
    """First and longest delay before participants that have not ended are called again."""


class PartitionId(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """A partition by the ID of its topic."""

    topic_id: UUID
    index: int


class GroupId(msgspec.Struct, frozen=True, order=True, cache_hash=True, gc=False):
    """A consumer group, which commits offsets in the transaction."""

    name: str


Participant = PartitionId | GroupId


def grouped(participants: Iterable[Participant]) -> tuple[dict[UUID, tuple[int, ...]], tuple[str, ...]]:
    """Return the partitions by topic ID, and the groups. Both are sorted."""
    indexes: dict[UUID, list[int]] = {}
    groups = []
    for each in participants:
        if isinstance(each, PartitionId):
            indexes.setdefault(each.topic_id, []).append(each.index)
        else:
            groups.append(each.name)
    return {topic_id: tuple(sorted(indexes[topic_id])) for topic_id in sorted(indexes)}, tuple(sorted(groups))


def listed(partitions: Mapping[UUID, Iterable[int]], groups: Iterable[str]) -> list[Participant]:
    """Return participants from their form in `grouped`."""
    found = [PartitionId(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes]
    return [*found, *(GroupId(name) for name in groups)]


_Epoch = Annotated[int, msgspec.Meta(ge=NO_EPOCH, le=FENCE_EPOCH)]
_ProducerId = Annotated[int, msgspec.Meta(ge=NO_PRODUCER_ID)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class StoredTransaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored state of a transactional ID."""

    state: TransactionState
    producer_id: _ProducerId
    producer_epoch: _Epoch
    previous_producer_id: _ProducerId = NO_PRODUCER_ID
    """Producer ID before the last rotation, for repeated requests."""
    next_producer_id: _ProducerId = NO_PRODUCER_ID
    """Producer ID after the transaction, because its epochs are exhausted."""
    last_epoch: _Epoch = NO_EPOCH
    """Epoch before the last bump that the client asked for, for repeated requests (KIP-360)."""
    number: _Count = 0
    """Number of the last begun transaction of the transactional ID."""
    version: Annotated[int, msgspec.Meta(ge=TV1, le=TV2)] = TV1
    """Version of the client's protocol."""
    timeout_ms: _Count = 0
    started_ms: int = -1
    """Start of the transaction (wall clock), for display."""
    updated_ms: int = 0
    """Last change (wall clock). Expiry counts from here."""
    copies: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Largest `min.insync.replicas` of the participants."""
    fenced: bool = False
    """Whether the coordinator aborted the transaction, not its client."""
    partitions: dict[UUID, tuple[_Count, ...]] = {}
    """Participating partitions by topic ID, which survives a move between virtual clusters."""
    groups: tuple[str, ...] = ()

    def participants(self) -> list[Participant]:
        """Return the partitions and groups."""
        return listed(self.partitions, self.groups)

    def with_participants(self, participants: Iterable[Participant]) -> "StoredTransaction":
        """Return the state with these participants only."""
        partitions, groups = grouped(participants)
        return msgspec.structs.replace(self, partitions=partitions, groups=groups)

    @property
    def producer_after(self) -> "tuple[int, int]":
        """Producer ID and epoch of the next transaction."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch


NEW = StoredTransaction(state=TransactionState.EMPTY, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
"""A transactional ID without stored state."""


class SaveTransaction(msgspec.Struct, frozen=True):
    """Replace the stored state."""

    state: StoredTransaction


class DropTransaction(msgspec.Struct, frozen=True):
    """Remove the transactional ID."""


TransactionChange = SaveTransaction | DropTransaction
