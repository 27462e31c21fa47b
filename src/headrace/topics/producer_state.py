"""Producer sequences: whether the next batch of an idempotent producer may enter a log. The rule stands only here.

Kafka's rule (KIP-98): a partition knows a producer by its epoch and its last five batches. A producer it does not know
may begin anywhere. In the same epoch a batch continues where the last one ended, or is one of the five once more: then
it gets the offset it got the first time. A higher epoch begins with sequence 0; a lower one is over.
"""

from typing import NamedTuple, Self

from headrace.topics.errors import InvalidProducerEpoch, OutOfOrderSequence

REMEMBERED = 5
"""Batches known per producer: as many as a client may have under way at once (KIP-98)."""
SEQUENCES = 2**31
"""Sequences wrap to 0 here."""
_make = tuple.__new__
"""Makes a named tuple of its fields, for every batch of every producer, in a third of the time of its own `__new__`."""


class SentBatch(NamedTuple):
    """A batch that was appended: its first and last sequence and its base offset."""

    first: int
    last: int
    base_offset: int


class ProducerStateEntry:
    """What a log knows of a producer."""

    __slots__ = ("batches", "epoch", "expected", "last_use_ms")

    def __init__(self, epoch: int, batches: tuple[SentBatch, ...] = (), last_use_ms: int = 0) -> None:
        """Take over what is known.

        Args:
            epoch: its producer epoch.
            batches: at most five, the newest first; none for a producer whose first batch is about to come.
            last_use_ms: when it was last heard of, milliseconds since the epoch.
        """
        self.epoch = epoch
        self.batches = batches
        self.last_use_ms = last_use_ms
        self.expected = (batches[0].last + 1) % SEQUENCES if batches else -1
        """The sequence that its next batch begins with; -1: any."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerStateEntry) and (self.epoch, self.batches, self.last_use_ms) == (
            other.epoch,
            other.batches,
            other.last_use_ms,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Producer({self.epoch}, {self.batches}, {self.last_use_ms})"

    def copy(self) -> Self:
        """As it is now."""
        return type(self)(self.epoch, self.batches, self.last_use_ms)

    def find(self, epoch: int, first: int, span: int) -> int:
        """The base offset of the batch that this one repeats; -1 when it is new and may be appended.

        Args:
            epoch: the batch's producer epoch.
            first: its first sequence.
            span: how many records it has.

        Raises:
            InvalidProducerEpoch: the producer's epoch is over.
            OutOfOrderSequence: neither the next sequence nor one of the batches remembered.
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
        """The sequence that its next batch begins with, in this epoch or in a new one."""
        return self.expected if epoch == self.epoch else 0

    def take(self, epoch: int, first: int, span: int, base_offset: int, now_ms: int) -> None:
        """A batch that `find` has let through lies at `base_offset`."""
        last = last_of(first, span)
        older = self.batches[: REMEMBERED - 1] if epoch == self.epoch else ()
        self.batches = (_make(SentBatch, (first, last, base_offset)), *older)
        self.epoch = epoch
        self.expected = (last + 1) % SEQUENCES
        self.last_use_ms = now_ms


def first_refused(known: tuple[int, int] | None, epoch: int, sequence: int) -> tuple[int, int]:
    """Return epoch and sequence of a producer's first rejected batch, after another rejection.

    Rejections may arrive out of order: one before sending is reported earlier than those in flight.
    """
    if known is None or known[0] < epoch or is_behind((epoch, sequence), *known):
        return epoch, sequence
    return known


def refused_after(
    refused: tuple[int, int] | None, epoch: int, first: int, span: int, *, repeated: bool
) -> tuple[int, int] | None:
    """Return what is left of the first rejection after a batch of the producer was stored.

    Args:
        refused: epoch and sequence of the first rejected batch.
        epoch: the stored batch's producer epoch.
        first: its first sequence.
        span: its number of records.
        repeated: it was already stored, although its outcome may have been reported as unknown: later batches are still
            to be sent again.
    """
    if refused is None or refused[0] < epoch:
        return None
    if repeated:
        following = (last_of(first, span) + 1) % SEQUENCES
        return (epoch, following) if is_behind(refused, epoch, following) else refused
    return refused if refused[0] > epoch or is_behind((epoch, first), *refused) else None


def may_begin(refused: tuple[int, int] | None, epoch: int, sequence: int) -> bool:
    """Whether a producer that a partition does not know may begin there: not behind what it refused."""
    return refused is None or refused[0] < epoch or refused == (epoch, sequence)


def is_behind(refused: tuple[int, int] | None, epoch: int, sequence: int) -> bool:
    """Whether a batch was sent behind the first one that was refused. That one itself was not."""
    return refused is not None and refused[0] == epoch and is_ahead(sequence, refused[1])


def is_ahead(sequence: int, of: int) -> bool:
    """Whether it comes later than the other; they wrap."""
    return 0 < ahead(sequence, of) < SEQUENCES // 2


def ahead(sequence: int, of: int) -> int:
    """How many sequences further; what is before it is nearly all the way round."""
    return (sequence - of) % SEQUENCES


def last_of(first: int, span: int) -> int:
    """The last sequence of a batch with `span` records that begins with `first`."""
    return (first + span - 1) % SEQUENCES
