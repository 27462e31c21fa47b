"""What brokers of a cluster membership ask each other about transactions."""

from typing import Annotated, Literal, Protocol, Self
from uuid import UUID

import msgspec

from headrace.membership.view import Member
from headrace.transactions.effects import AddResult, LookupResult, Result, VerifyResult, refusal
from headrace.transactions.errors import TransactionError
from headrace.transactions.events import Add, Lookup, Verify
from headrace.transactions.model import TV2, GroupId, Participant, PartitionId, grouped, listed

_Index = Annotated[int, msgspec.Meta(ge=0)]
_Copies = Annotated[int, msgspec.Meta(ge=1)]
_PARTITION_BYTES, _TOPIC_BYTES, CHARACTER_BYTES = 12, 48, 6
"""Largest sizes in JSON. A character may become an escape sequence."""


class Participants(msgspec.Struct, frozen=True, omit_defaults=True):
    """Partitions and groups in JSON."""

    partitions: dict[UUID, tuple[_Index, ...]] = {}
    groups: tuple[str, ...] = ()

    def as_list(self) -> list[Participant]:
        """Return the partitions and groups."""
        return listed(self.partitions, self.groups)


class RemoteEnd(msgspec.Struct, frozen=True):
    """End a transaction at participants of one broker. As `EndParticipants`, for a virtual cluster."""

    cluster: str
    producer_id: int
    epoch: int
    commit: bool
    number: int
    participants: Participants


class RemoteEnded(msgspec.Struct, frozen=True, omit_defaults=True):
    """Participants that have ended the transaction. The coordinator asks for the others again."""

    participants: Participants = Participants()
    reason: str = ""
    """Why some have not."""


Question = Add | Verify | Lookup
"""A request of one participant."""


class RemoteQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for the coordinator of a transaction: of one participant, or to end the transaction everywhere."""

    cluster: str
    transactional_id: str
    kind: Literal["add", "verify", "lookup", "end"]
    producer_id: int
    epoch: int
    participant: tuple[UUID, _Index] | str
    """A topic ID and a partition, or the name of a group. Without a meaning for `end`, as the two before it."""
    copies: _Copies = 1

    @classmethod
    def of(cls, cluster: str, transactional_id: str, event: Question) -> Self:
        """Return the message for an event with one participant."""
        kind: Literal["add", "verify", "lookup"]
        copies = 1
        match event:
            case Add(participants=(one,), copies=copies):
                kind = "add"
            case Verify(participants=(one,)):
                kind = "verify"
            case Lookup(participant=one):
                kind = "lookup"
            case _:
                raise AssertionError("one participant asks")
        participant = one.name if isinstance(one, GroupId) else (one.topic_id, one.index)
        return cls(cluster, transactional_id, kind, event.producer_id, event.epoch, participant, copies)

    @classmethod
    def to_end(cls, cluster: str, transactional_id: str) -> Self:
        """Return the message that ends the open transaction of an ID, because its virtual cluster is deleted."""
        return cls(cluster, transactional_id, "end", -1, -1, "")

    def event(self) -> Question:
        """Return the event for the coordinator. Not for `end`."""
        assert self.kind != "end"
        asking: Participant
        asking = GroupId(self.participant) if isinstance(self.participant, str) else PartitionId(*self.participant)
        producer_id, epoch = self.producer_id, self.epoch
        if self.kind == "lookup":
            return Lookup(token=object(), producer_id=producer_id, epoch=epoch, participant=asking)
        some = (asking,)
        if self.kind == "verify":
            return Verify(token=object(), producer_id=producer_id, epoch=epoch, participants=some)
        return Add(
            token=object(), producer_id=producer_id, epoch=epoch, participants=some, version=TV2, copies=self.copies
        )


class RemoteAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A coordinator's response."""

    error: str = ""
    """Name of a `TransactionError`."""
    number: int = 0
    included: bool = True
    """Whether the transaction includes the participant, or may still end there."""

    @classmethod
    def of(cls, result: Result) -> Self:
        """Return the message for a result."""
        if result.error is not None:
            return cls(result.error.name)
        match result:
            case AddResult(number=number):
                return cls(number=number)
            case VerifyResult(missing=missing, number=number):
                return cls(number=number, included=not missing)
            case LookupResult(open=is_open):
                return cls(included=is_open)
        raise AssertionError("no response to a participant")

    def result(self, question: Question) -> Result:
        """Return the result of the event. An error of a later version can be retried."""
        if self.error:
            later = TransactionError.COORDINATOR_NOT_AVAILABLE
            return refusal(question, TransactionError.__members__.get(self.error, later))
        match question:
            case Add():
                return AddResult(number=self.number)
            case Verify():
                missing = frozenset[Participant]() if self.included else frozenset(question.participants)
                return VerifyResult(number=self.number, missing=missing)
            case Lookup():
                return LookupResult(open=self.included)


class TransactionPeers(Protocol):
    """The other brokers, for transactions."""

    async def end(self, member: Member, call: RemoteEnd) -> RemoteEnded:
        """End a transaction at participants of a broker. Raises StorageUnavailable if it does not respond."""

    async def ask(self, member: Member, question: RemoteQuestion) -> RemoteAnswer:
        """Ask a broker as a coordinator. Raises StorageUnavailable if it does not respond.

        It may have handled the question, which is safe to repeat.
        """

    async def is_current(self) -> bool:
        """Apply the changes of metadata until now. Return whether all are applied. Raises StorageUnavailable."""


def json_bytes(participant: Participant) -> int:
    """Return an upper limit of a participant's size in `Participants`."""
    if isinstance(participant, GroupId):
        return _PARTITION_BYTES + CHARACTER_BYTES * len(participant.name)
    return _TOPIC_BYTES + _PARTITION_BYTES


def packed(participants: "list[Participant]") -> Participants:
    """Return participants for JSON."""
    return Participants(*grouped(participants))
