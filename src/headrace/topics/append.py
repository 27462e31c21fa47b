"""The leader's state of a log's end, and the assignment of offsets. Pure.

A leader loads the log's end and producers, then assigns offsets in memory, ahead of storage. A failed or uncertain
write invalidates this state: the log must be recovered.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from heapq import nsmallest

from headrace.records.markers import Marker, is_later
from headrace.topics.errors import (
    BehindRefused,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OffsetsExhausted,
    OutOfOrderSequence,
    TransactionUnverified,
)
from headrace.topics.model import Append, Appended
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.rejected_batches import RejectedBatches
from headrace.topics.transactions import UNNUMBERED, OpenTransaction, Transactions

MOST_OFFSET = 2**53 - 1
"""Upper limit of offsets: scripts in Redis compute with doubles."""
MOST_PRODUCERS = 100_000
"""Maximum producers remembered per log. Above it, the tenth that was silent longest is forgotten."""


class EndStep(Enum):
    """What a request to end a transaction requires."""

    REPEATED = "repeated"
    """Nothing: the transaction has ended."""
    PLACE = "place"
    """A marker."""
    NOTE = "note"
    """A note of the epoch and number: the producer has no open transaction."""


class OffsetAssigner:
    """Checks sequences and assigns offsets for one log."""

    __slots__ = ("_changed", "_count", "next_offset", "producers", "refused", "transactions")

    def __init__(
        self,
        next_offset: int,
        producers: Mapping[int, ProducerStateEntry] | None = None,
        unsaved: Collection[int] = (),
        refused: RejectedBatches | None = None,
        count: Callable[[], None] = lambda: None,
        transactions: Transactions | None = None,
    ) -> None:
        """Start at the stored log end.

        `unsaved` are producers whose stored state differs. `refused` is the state of the previous leader. `count` is
        called before a producer is added, and raises TooManyProducers.
        """
        self.next_offset = next_offset
        self.producers: dict[int, ProducerStateEntry] = dict(producers or {})
        self._changed: set[int] = set(unsaved)
        self._count = count
        self.transactions = Transactions() if transactions is None else transactions
        self.refused = RejectedBatches(lambda: 0) if refused is None else refused

    def assign(self, append: Append, now_ms: int, number: int = UNNUMBERED) -> Appended:
        """Assign an offset to a batch, unless it is a duplicate.

        A transactional one opens a transaction if its producer has none. `number` is its number, if known.

        Raises:
            InvalidTransactionState: it does not fit the open transaction of its producer.
            TransactionUnverified: its transaction has ended here.
            OutOfOrderSequence, InvalidProducerEpoch: see `topics.producer_state`.
            BehindRefused: it was sent after a rejected batch that has not been sent again.
            OffsetsExhausted: no offsets are left.
            TooManyProducers: the server's limit is reached.
        """
        base_offset = self.next_offset
        following = base_offset + append.span
        producer_id = append.producer_id
        if producer_id >= 0:
            known = self.producers.get(producer_id)
            if known is None:
                self._check_first(append)
            else:
                repeated = self._find(append, known, base_offset)
                if repeated >= 0:
                    if self.refused.first:
                        self.refused.stored(append, repeated=True)
                    return Appended(repeated, duplicate=True)
        if following > MOST_OFFSET:
            raise _exhausted(append, base_offset)
        if producer_id >= 0:
            transactional = append.transaction is not None
            if transactional or self.transactions.open:
                self._check_transaction(append, number)
            if known is None:
                known = self._add(producer_id, append.producer_epoch)
            known.take(append.producer_epoch, append.base_sequence, append.span, base_offset, now_ms)
            self._changed.add(producer_id)
            if self.refused.first:
                self.refused.end(producer_id)
            if transactional:
                self.transactions.begin(
                    OpenTransaction(
                        producer_id, base_offset, append.producer_epoch, now_ms, number, append.transaction or ""
                    )
                )
        self.next_offset = following
        return Appended(base_offset)

    def _find(self, append: Append, known: ProducerStateEntry, base_offset: int) -> int:
        try:
            return known.find(append.producer_epoch, append.base_sequence, append.span)
        except OutOfOrderSequence as error:
            if base_offset + append.span > MOST_OFFSET:
                # The missing batches were rejected for that reason.
                raise _exhausted(append, base_offset) from None
            self._check_behind(append, known.expected_of(append.producer_epoch), error)
            raise

    def _add(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        self._count()
        self._make_room()
        known = self.producers[producer_id] = ProducerStateEntry(epoch)
        return known

    def _check_transaction(self, append: Append, number: int) -> None:
        found = self.transactions.open.get(append.producer_id)
        if found is None:
            known = self.producers.get(append.producer_id)
            if number >= 0 and known is not None and known.ended >= 0 and not is_later(number, known.ended):
                # An earlier coordinator has confirmed it. No marker would follow.
                raise TransactionUnverified("the transaction ended before its batch was stored")
            return
        if append.transaction is None:
            raise InvalidTransactionState(f"producer {append.producer_id} has an open transaction: a plain batch")
        if found.epoch != append.producer_epoch:
            raise InvalidTransactionState(
                f"the open transaction of producer {append.producer_id} has epoch {found.epoch}, "
                f"the batch {append.producer_epoch}"
            )

    def must_verify(self, append: Append) -> bool:
        """Whether a transactional batch may open a transaction, which its coordinator must confirm.

        Not for one that `assign` rejects or finds to be repeated.
        """
        found = self.transactions.open.get(append.producer_id)
        if found is not None and found.epoch == append.producer_epoch:
            return False
        known = self.producers.get(append.producer_id)
        if known is None:
            return True
        epoch = append.producer_epoch
        return epoch >= known.epoch and not known.repeats(epoch, append.base_sequence, append.span)

    def check_end(self, marker: Marker) -> EndStep:
        """Return what the end of a transaction requires.

        A repeated request may arrive after the next transaction of its producer began, in the same epoch. Its number
        tells the two apart.

        Raises:
            InvalidProducerEpoch: a higher epoch is known, and the request is not known to be a repeated one.
        """
        known, found = self.producers.get(marker.producer_id), self.transactions.open.get(marker.producer_id)
        if marker.number >= 0:
            if known is not None and known.ended >= 0 and not is_later(marker.number, known.ended):
                return EndStep.REPEATED
            if found is not None and found.number >= 0 and is_later(found.number, marker.number):
                return EndStep.REPEATED
        if known is not None and marker.producer_epoch < known.epoch:
            raise InvalidProducerEpoch(f"producer epoch {marker.producer_epoch} is over, now {known.epoch}")
        return EndStep.NOTE if found is None else EndStep.PLACE

    def assign_marker(self, marker: Marker, now_ms: int) -> int:
        """Assign an offset to the marker that ends the producer's open transaction.

        Raises:
            OffsetsExhausted: no offsets are left.
            TooManyProducers: the server's limit is reached.
        """
        offset = self.next_offset
        if offset + 1 > MOST_OFFSET:
            raise OffsetsExhausted(f"offset {offset} leaves no room for a transaction marker below 2^53")
        self.note_end(marker, now_ms)
        self.transactions.end(marker.producer_id, offset, commit=marker.commit)
        self.next_offset = offset + 1
        return offset

    def note_end(self, marker: Marker, now_ms: int) -> None:
        """Record epoch and number of an ended transaction. Raises TooManyProducers."""
        known = self.producers.get(marker.producer_id)
        if known is None:
            known = self._add(marker.producer_id, marker.producer_epoch)
        known.end(marker.producer_epoch, marker.number, now_ms)
        self._changed.add(marker.producer_id)

    def _check_first(self, append: Append) -> None:
        if self.refused.may_begin(append):
            return
        refused = self.refused.first.get(append.producer_id)
        first = None if refused is None else refused[1]
        expected = "what was sent ahead" if first is None else f"{first}, which was refused"
        error = OutOfOrderSequence(f"expected {expected}, found {append.base_sequence}")
        self._check_behind(append, first, error)
        raise error

    def _check_behind(self, append: Append, expected: int | None, error: OutOfOrderSequence) -> None:
        if self.refused.waits(append, expected):
            raise BehindRefused(f"{error}: sent after a batch that was refused") from None

    def _make_room(self) -> None:
        if len(self.producers) >= MOST_PRODUCERS:
            idle = (each for each in self.producers if each not in self.transactions.open)
            self._forget(nsmallest(MOST_PRODUCERS // 10, idle, key=lambda each: self.producers[each].last_use_ms))

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since before this time (`producer.id.expiration.ms`). Return their number.

        A producer with an open transaction remains: its epoch must not go back.
        """
        busy = self.transactions.open
        silent = [each for each, known in self.producers.items() if known.last_use_ms < before_ms and each not in busy]
        self._forget(silent)
        return len(silent)

    def _forget(self, producers: list[int]) -> None:
        for producer_id in producers:
            del self.producers[producer_id]
        self._changed.update(producers)

    @property
    def unsaved(self) -> bool:
        """Whether producers have changed since `take_changed`."""
        return bool(self._changed) or self.transactions.unsaved

    def is_unsaved(self, producer_id: int) -> bool:
        """Whether a producer has changed since `take_changed`."""
        return producer_id in self._changed

    def take_changed(self) -> list[int]:
        """Return ids of producers changed or forgotten since the last call."""
        changed, self._changed = self._changed, set()
        return list(changed)

    def keep_changed(self, producers: Iterable[int]) -> None:
        """Return producers to the next `take_changed` after a failed save."""
        self._changed.update(producers)

    def as_they_are(self, producers: Iterable[int]) -> dict[int, ProducerStateEntry | None]:
        """Return the producers' state to store. None: forgotten."""
        return {each: known.copy() if (known := self.producers.get(each)) else None for each in producers}


def _exhausted(append: Append, base_offset: int) -> OffsetsExhausted:
    return OffsetsExhausted(f"offset {base_offset} leaves no room for {append.span} more below 2^53")
