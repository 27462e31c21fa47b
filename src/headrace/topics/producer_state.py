"""Sequences of idempotent producers (KIP-98).

A partition knows a producer's epoch and last five batches. An unknown producer may start anywhere. Within an epoch, a
batch must follow the last one, or repeat one of the five and get its offset. A higher epoch starts with sequence 0; a
lower one is fenced.
"""

from typing import NamedTuple, Self

from headrace.records.batch import SEQUENCES
from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED = 5
"""Batches known per producer: the maximum that a client may have in flight (KIP-98)."""
NEVER_ENDED = -1
"""Number of the last ended transaction of a producer without one."""
_make = tuple.__new__
"""Creates a named tuple in a third of the time of its own `__new__`."""


class SentBatch(NamedTuple):
    """An appended batch: first and last sequence, and base offset."""

    first: int
    last: int
    base_offset: int


class ProducerDescription(NamedTuple):
    """A producer of one log, as DescribeProducers reports it. -1: none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_use_ms: int
    ended: int
    """Number of its last ended transaction."""
    transaction_start: int
    """First offset of its open transaction."""


class ProducerStateEntry:
    """State of a producer in one log."""

    __slots__ = ("batches", "ended", "epoch", "expected", "last_use_ms")

    def __init__(
        self, epoch: int, batches: tuple[SentBatch, ...] = (), last_use_ms: int = 0, ended: int = NEVER_ENDED
    ) -> None:
        """Restore the state.

        `batches` are at most five, newest first. `last_use_ms` is since the epoch. `ended` is as the attribute.
        """
        self.ended = ended
        """Number of its last transaction that ended here, modulo 2^31. It recognizes a repeated request to end it."""
        self.epoch = epoch
        self.batches = batches
        self.last_use_ms = last_use_ms
        self.expected = (batches[0].last + 1) % SEQUENCES if batches else -1
        """First sequence of its next batch. -1: any."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStateEntry) and (
            self.epoch,
            self.batches,
            self.last_use_ms,
            self.ended,
        ) == (other.epoch, other.batches, other.last_use_ms, other.ended)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Producer({self.epoch}, {self.batches}, {self.last_use_ms}, {self.ended})"

    def copy(self) -> Self:
        """Return a copy."""
        copied = type(self)(self.epoch, self.batches, self.last_use_ms, self.ended)
        copied.expected = self.expected
        return copied

    def find(self, epoch: int, first: int, span: int) -> int:
        """Return the base offset of the batch that this one repeats, or -1 for a new one.

        Raises:
            InvalidProducerEpoch: the epoch is fenced.
            OutOfOrderSequence: neither the next sequence nor a known batch.
        """
        if epoch == self.epoch:
            if first == self.expected or self.expected < 0:
                return -1
            last = last_of(first, span)
            for batch in self.batches:
                if batch.first == first and batch.last == last:
                    return batch.base_offset
            raise OutOfOrderSequence(f"expected {self.expected}, found {first}")
        if epoch < self.epoch:
            raise InvalidProducerEpoch(f"producer epoch {epoch} is over, now {self.epoch}")
        if first != 0:
            raise OutOfOrderSequence(f"a new producer epoch begins with sequence 0, found {first}")
        return -1

    def expected_of(self, epoch: int) -> int:
        """Return the first sequence of its next batch in this or a new epoch."""
        return self.expected if epoch == self.epoch else 0

    def repeats(self, epoch: int, first: int, span: int) -> bool:
        """Whether it is one of the known batches."""
        last = last_of(first, span)
        return epoch == self.epoch and any((each.first, each.last) == (first, last) for each in self.batches)

    def end(self, epoch: int, number: int, now_ms: int) -> None:
        """Record the end of a transaction, whose epoch may be higher. `number` is negative if it is unknown."""
        if epoch > self.epoch or not self.batches:
            self.batches = ()
            self.expected = 0
        self.epoch = max(epoch, self.epoch)
        if number >= 0:
            self.ended = number
        self.last_use_ms = now_ms

    def take(self, epoch: int, first: int, span: int, base_offset: int, now_ms: int) -> None:
        """Record a batch that `find` accepted."""
        last = last_of(first, span)
        older = self.batches[: REMEMBERED - 1] if epoch == self.epoch else ()
        self.batches = (_make(SentBatch, (first, last, base_offset)), *older)
        self.epoch = epoch
        self.expected = (last + 1) % SEQUENCES
        self.last_use_ms = now_ms


def first_refused(known: tuple[int, int] | None, epoch: int, sequence: int) -> tuple[int, int]:
    """Return epoch and sequence of a producer's first rejected batch, after another rejection.

    Rejections may arrive out of order: those before sending are reported earlier than those in flight.
    """
    if known is None or known[0] < epoch or is_behind((epoch, sequence), *known):
        return epoch, sequence
    return known


def refused_after(
    refused: tuple[int, int] | None, epoch: int, first: int, span: int, *, repeated: bool
) -> tuple[int, int] | None:
    """Return what is left of the first rejection after a batch of the producer was stored.

    `repeated`: it was already stored, although its outcome may have been reported as unknown. Later batches are still
    to be sent again.
    """
    if refused is None or refused[0] < epoch:
        return None
    if repeated:
        following = (last_of(first, span) + 1) % SEQUENCES
        return (epoch, following) if is_behind(refused, epoch, following) else refused
    return refused if refused[0] > epoch or is_behind((epoch, first), *refused) else None


def may_begin(refused: tuple[int, int] | None, epoch: int, sequence: int) -> bool:
    """Whether an unknown producer may start there: not after its own rejected batch."""
    return refused is None or refused[0] < epoch or refused == (epoch, sequence)


def is_behind(refused: tuple[int, int] | None, epoch: int, sequence: int) -> bool:
    """Whether a batch was sent after the first rejected one."""
    return refused is not None and refused[0] == epoch and is_ahead(sequence, refused[1])


def is_ahead(sequence: int, of: int) -> bool:
    """Whether a sequence is later than another, with wrapping."""
    return 0 < ahead(sequence, of) < SEQUENCES // 2


def ahead(sequence: int, of: int) -> int:
    """Return the forward distance of sequences, with wrapping."""
    return (sequence - of) % SEQUENCES


def last_of(first: int, span: int) -> int:
    """Return the last sequence of a batch."""
    return (first + span - 1) % SEQUENCES
