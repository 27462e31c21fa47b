"""Which batches of producers were refused for a moment, and how long those behind them wait for them."""

from collections.abc import Callable

from headrace.topics.model import Append
from headrace.topics.producer_state import ahead, first_refused, is_ahead, is_behind, may_begin, refused_after

MOST_REFUSED = 10_000
"""Producers remembered of one partition; beyond that the one whose last refusal is longest ago is forgotten."""
WAIT_MS = 10_000
"""So long those behind a refused batch are to come again: a producer that has not sent it by then has given it up.

So long, too, after one was forgotten: until then any producer may be that one.
"""


class RejectedBatches:
    """Rejected batches of one partition.

    They are kept across a change of cluster membership in which another broker may have led the partition. An unknown
    producer has not continued there, and its second batch may still arrive here. librdkafka takes a response to it for
    one to the first.
    """

    __slots__ = ("_forgot_ms", "_has_room", "_last", "_since", "_ticks_ms", "first")

    def __init__(self, ticks_ms: Callable[[], int], has_room: Callable[[], bool] = lambda: True) -> None:
        """Remember none.

        Args:
            ticks_ms: milliseconds without jumps; asked only where something was refused.
            has_room: asked for each producer that is added: whether the server may remember one more.
        """
        self.first: dict[int, tuple[int, int]] = {}
        """Producer id -> epoch and sequence of the first batch that was refused since one of its batches was placed.

        Where that one turns out to have been stored, the sequence behind it.
        """
        self._since: dict[int, int] = {}
        """Producer id -> since when (ticks) batches behind that one come, and it does not."""
        self._last: dict[int, int] = {}
        """Producer id -> when (ticks) the last change of what `first` says was; the one of longest ago is first."""
        self._forgot_ms: int | None = None
        """When (ticks) a producer was forgotten since there were too many; None: none was, or it matters no more."""
        self._ticks_ms = ticks_ms
        self._has_room = has_room

    def refuse(self, append: Append) -> None:
        """A batch could not be stored, and its producer may have sent more: none of those is to come before it."""
        producer = append.producer_id
        if producer < 0:
            return
        known = self.end(producer)
        self._keep(producer, first_refused(known, append.producer_epoch, append.base_sequence))
        full = known is None and not self._has_room()
        if full or len(self.first) > MOST_REFUSED:
            self.end(next(iter(self.first)))
            self._forgot_ms = self._ticks_ms()

    def stored(self, append: Append, *, repeated: bool) -> None:
        """A batch was stored.

        `repeated`: it was already stored, although its outcome may have been reported as unknown.
        """
        producer, epoch = append.producer_id, append.producer_epoch
        left = refused_after(self.end(producer), epoch, append.base_sequence, append.span, repeated=repeated)
        if left is not None:
            self._keep(producer, left)

    def may_begin(self, append: Append) -> bool:
        """Whether a producer that a partition does not know may begin with this batch: not behind what was refused."""
        refused = self.first.get(append.producer_id)
        if refused is None and append.base_sequence:
            return not self._has_forgotten()
        return may_begin(refused, append.producer_epoch, append.base_sequence)

    def waits(self, append: Append, expected: int | None = None) -> bool:
        """Return whether an out-of-order batch follows a rejected one, and is to be sent again with it.

        Not if the producer has given that one up, as the Java client does after `delivery.timeout.ms`. That client
        continues until a gap is reported, then begins a new epoch.

        Args:
            append: the batch.
            expected: the next expected sequence of this producer, if known.
        """
        producer = append.producer_id
        refused = self.first.get(producer)
        if refused is None:
            # One from before what is expected comes again for another reason.
            return (expected is None or is_ahead(append.base_sequence, expected)) and self._has_forgotten()
        if not is_behind(refused, append.producer_epoch, append.base_sequence):
            return False
        if expected is not None and ahead(expected, refused[1]) >= ahead(append.base_sequence, refused[1]):
            return False
        now = self._ticks_ms()
        return now - self._since.setdefault(producer, now) < WAIT_MS

    def _has_forgotten(self) -> bool:
        """Whether it may be any producer whose first batch was refused and is still to come again."""
        if self._forgot_ms is not None and self._ticks_ms() - self._forgot_ms >= WAIT_MS:
            self._forgot_ms = None
        return self._forgot_ms is not None

    def end(self, producer: int) -> tuple[int, int] | None:
        """Nothing of a producer is waited for any more; what was."""
        self._since.pop(producer, None)
        self._last.pop(producer, None)
        return self.first.pop(producer, None)

    def expire(self, silent_ms: int) -> None:
        """Forget what was refused so long ago: a log forgets producers by then, too (`producer.id.expiration.ms`)."""
        if not self._last:
            return
        before = self._ticks_ms() - silent_ms
        for producer in [each for each, last in self._last.items() if last < before]:
            self.end(producer)

    def _keep(self, producer: int, refused: tuple[int, int]) -> None:
        self.first[producer] = refused
        self._last[producer] = self._ticks_ms()
