"""The leader's state of a log's end, and the assignment of offsets. Pure.

One server leads a log at a time. It loads the log's end and producers when it becomes leader, then assigns offsets in
memory, ahead of storage. After a failed or uncertain write this state is invalid, and the log must be recovered.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import nsmallest

from headrace.topics.errors import BehindRefused, OffsetsExhausted, OutOfOrderSequence
from headrace.topics.model import Append, Appended
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.rejected_batches import RejectedBatches

MOST_OFFSET = 2**53 - 1
"""Offsets stay below it: scripts in Redis compute with doubles."""
MOST_PRODUCERS = 100_000
"""Maximum producers remembered per log. Beyond it, the tenth that was silent for longest is forgotten."""


class OffsetAssigner:
    """Decides sequence and offset of every batch of one log."""

    __slots__ = ("_changed", "_count", "next_offset", "producers", "refused")

    def __init__(
        self,
        next_offset: int,
        producers: Mapping[int, ProducerStateEntry] | None = None,
        unsaved: Collection[int] = (),
        refused: RejectedBatches | None = None,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        """Start at the stored log end.

        Args:
            next_offset: the log end offset.
            producers: idempotent producers by id.
            unsaved: producers whose stored state differs.
            refused: rejected batches of the previous leader; None: none, and time is not tracked.
            count: called before a producer is added; raises TooManyProducers.
        """
        self.next_offset = next_offset
        self.producers: dict[int, ProducerStateEntry] = dict(producers or {})
        self._changed: set[int] = set(unsaved)
        self._count = count
        self.refused = RejectedBatches(lambda: 0) if refused is None else refused

    def assign(self, append: Append, now_ms: int) -> Appended:
        """Decide where a batch goes; unless it is a repeated one the log ends behind it from here on.

        Args:
            append: the batch.
            now_ms: milliseconds since the epoch: when its producer was last heard of.

        Raises:
            OutOfOrderSequence, InvalidProducerEpoch: see `topics.producer_state`.
            BehindRefused: it was sent behind a batch that was refused, and that has not come again yet.
            OffsetsExhausted: no offsets are left.
            TooManyProducers: the server knows as many producers as it may.
        """
        base_offset = self.next_offset
        following = base_offset + append.span
        producer_id = append.producer_id
        if producer_id >= 0:
            known = self.producers.get(producer_id)
            if known is None:
                self._check_first(append)
            else:
                try:
                    repeated = known.find(append.producer_epoch, append.base_sequence, append.span)
                except OutOfOrderSequence as error:
                    if following > MOST_OFFSET:
                        # What is missing was refused for that.
                        raise _exhausted(append, base_offset) from None
                    self._check_behind(append, known.expected_of(append.producer_epoch), error)
                    raise
                if repeated >= 0:
                    if self.refused.first:
                        self.refused.stored(append, repeated=True)
                    return Appended(repeated, duplicate=True)
        if following > MOST_OFFSET:
            raise _exhausted(append, base_offset)
        if producer_id >= 0:
            if known is None:
                self._count()
                self._make_room()
                known = self.producers[producer_id] = ProducerStateEntry(append.producer_epoch)
            known.take(append.producer_epoch, append.base_sequence, append.span, base_offset, now_ms)
            self._changed.add(producer_id)
            if self.refused.first:
                self.refused.end(producer_id)
        self.next_offset = following
        return Appended(base_offset)

    def _check_first(self, append: Append) -> None:
        """Accept any first sequence of an unknown producer, unless it follows its own rejected batch."""
        if self.refused.may_begin(append):
            return
        refused = self.refused.first.get(append.producer_id)
        first = None if refused is None else refused[1]
        expected = "what was sent ahead" if first is None else f"{first}, which was refused"
        error = OutOfOrderSequence(f"expected {expected}, found {append.base_sequence}")
        self._check_behind(append, first, error)
        raise error

    def _check_behind(self, append: Append, expected: int | None, error: OutOfOrderSequence) -> None:
        """Reject batches sent after a rejected one until that one is sent again."""
        if self.refused.waits(append, expected):
            raise BehindRefused(f"{error}: sent after a batch that was refused") from None

    def _make_room(self) -> None:
        if len(self.producers) >= MOST_PRODUCERS:
            oldest = nsmallest(MOST_PRODUCERS // 10, self.producers, key=lambda each: self.producers[each].last_use_ms)
            self._forget(oldest)

    def expire(self, before_ms: int) -> int:
        """Forget producers that were last heard of before this time (`producer.id.expiration.ms`); how many."""
        silent = [each for each, known in self.producers.items() if known.last_use_ms < before_ms]
        self._forget(silent)
        return len(silent)

    def _forget(self, producers: list[int]) -> None:
        for producer_id in producers:
            del self.producers[producer_id]
        self._changed.update(producers)

    @property
    def unsaved(self) -> bool:
        """Whether producers have changed since the last `take_changed`."""
        return bool(self._changed)

    def take_changed(self) -> list[int]:
        """The ids of producers that have changed, or were forgotten, since the last time."""
        changed, self._changed = self._changed, set()
        return list(changed)

    def keep_changed(self, producers: Iterable[int]) -> None:
        """Return producers to the next `take_changed` after a failed save."""
        self._changed.update(producers)

    def as_they_are(self, producers: Iterable[int]) -> dict[int, ProducerStateEntry | None]:
        """What is to be stored of producers now; None: it was forgotten."""
        return {each: known.copy() if (known := self.producers.get(each)) else None for each in producers}


def _exhausted(append: Append, base_offset: int) -> OffsetsExhausted:
    return OffsetsExhausted(f"offset {base_offset} leaves no room for {append.span} more below 2^53")
