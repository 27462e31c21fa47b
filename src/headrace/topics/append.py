"""The leader's state of a log's end, and the assignment of offsets. Pure.

A leader loads the log's end and producers, then assigns offsets in memory, ahead of storage. A failed or uncertain
write invalidates this state: the log must be recovered.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import nsmallest

from headrace.topics.errors import BehindRefused, OffsetsExhausted, OutOfOrderSequence
from headrace.topics.model import Append, Appended
from headrace.topics.producer_state import ProducerStateEntry
from headrace.topics.rejected_batches import RejectedBatches

MOST_OFFSET = 2**53 - 1
"""Upper limit of offsets: scripts in Redis compute with doubles."""
MOST_PRODUCERS = 100_000
"""Maximum producers remembered per log. Above it, the tenth that was silent longest is forgotten."""


class OffsetAssigner:
    """Checks sequences and assigns offsets for one log."""

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

        `unsaved` are producers whose stored state differs. `refused` is the state of the previous leader. `count` is
        called before a producer is added, and raises TooManyProducers.
        """
        self.next_offset = next_offset
        self.producers: dict[int, ProducerStateEntry] = dict(producers or {})
        self._changed: set[int] = set(unsaved)
        self._count = count
        self.refused = RejectedBatches(lambda: 0) if refused is None else refused

    def assign(self, append: Append, now_ms: int) -> Appended:
        """Assign an offset to a batch, unless it is a duplicate.

        Raises:
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
                try:
                    repeated = known.find(append.producer_epoch, append.base_sequence, append.span)
                except OutOfOrderSequence as error:
                    if following > MOST_OFFSET:
                        # The missing batches were rejected for that reason.
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
            oldest = nsmallest(MOST_PRODUCERS // 10, self.producers, key=lambda each: self.producers[each].last_use_ms)
            self._forget(oldest)

    def expire(self, before_ms: int) -> int:
        """Forget producers silent since before this time (`producer.id.expiration.ms`). Return their number."""
        silent = [each for each, known in self.producers.items() if known.last_use_ms < before_ms]
        self._forget(silent)
        return len(silent)

    def _forget(self, producers: list[int]) -> None:
        for producer_id in producers:
            del self.producers[producer_id]
        self._changed.update(producers)

    @property
    def unsaved(self) -> bool:
        """Whether producers have changed since `take_changed`."""
        return bool(self._changed)

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
