"""Rejected batches of producers, and how long later ones wait for them."""

from collections.abc import Callable

from headrace.topics.model import Append
from headrace.topics.producer_state import ahead, first_refused, is_ahead, is_behind, may_begin, refused_after

MOST_REFUSED = 10_000
"""Maximum producers remembered per partition. Above it, the one with the oldest rejection is forgotten."""
WAIT_MS = 10_000
"""Time for which batches after a rejected one must be sent again. Later, the producer has given it up.

After one was forgotten, any producer may be that one for as long.
"""


class RejectedBatches:
    """Rejected batches of one partition.

    They are kept across changes of cluster membership in which another broker may have led the partition. An unknown
    producer has not continued there, and its second batch may still arrive here. librdkafka takes a response to it for
    one to the first.
    """

    __slots__ = ("_forgot_ms", "_has_room", "_last", "_since", "_ticks_ms", "first")

    def __init__(self, ticks_ms: Callable[[], int], has_room: Callable[[], bool] = lambda: True) -> None:
        """Start empty.

        `ticks_ms` is monotonic. `has_room` returns whether the server may remember one more producer.
        """
        self.first: dict[int, tuple[int, int]] = {}
        """Producer id -> epoch and sequence of its first rejected batch.

        If that batch proves to be stored, the sequence after it.
        """
        self._since: dict[int, int] = {}
        """Producer id -> ticks since which later batches arrive without that one."""
        self._last: dict[int, int] = {}
        """Producer id -> ticks of the last change in `first`, oldest first."""
        self._forgot_ms: int | None = None
        """Ticks when a producer was last forgotten for lack of room, while that matters."""
        self._ticks_ms = ticks_ms
        self._has_room = has_room

    def refuse(self, append: Append) -> None:
        """Record a rejected batch: later ones of its producer must not be stored before it."""
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
        """Record a stored batch.

        `repeated`: it was already stored, although its outcome may have been reported as unknown.
        """
        producer, epoch = append.producer_id, append.producer_epoch
        left = refused_after(self.end(producer), epoch, append.base_sequence, append.span, repeated=repeated)
        if left is not None:
            self._keep(producer, left)

    def may_begin(self, append: Append) -> bool:
        """Whether an unknown producer may start with this batch: not after its own rejected one."""
        refused = self.first.get(append.producer_id)
        if refused is None and append.base_sequence:
            return not self._has_forgotten()
        return may_begin(refused, append.producer_epoch, append.base_sequence)

    def waits(self, append: Append, expected: int | None = None) -> bool:
        """Return whether an out-of-order batch follows a rejected one, and is to be sent again with it.

        Not if the producer has given that one up, as the Java client does after `delivery.timeout.ms`. That client
        continues until a gap is reported, then begins a new epoch. `expected` is the producer's next sequence, if
        known.
        """
        producer = append.producer_id
        refused = self.first.get(producer)
        if refused is None:
            # Earlier sequences are sent again for another reason.
            return (expected is None or is_ahead(append.base_sequence, expected)) and self._has_forgotten()
        if not is_behind(refused, append.producer_epoch, append.base_sequence):
            return False
        if expected is not None and ahead(expected, refused[1]) >= ahead(append.base_sequence, refused[1]):
            return False
        now = self._ticks_ms()
        return now - self._since.setdefault(producer, now) < WAIT_MS

    def _has_forgotten(self) -> bool:
        if self._forgot_ms is not None and self._ticks_ms() - self._forgot_ms >= WAIT_MS:
            self._forgot_ms = None
        return self._forgot_ms is not None

    def end(self, producer: int) -> tuple[int, int] | None:
        """Forget a producer's rejections. Return the first one."""
        self._since.pop(producer, None)
        self._last.pop(producer, None)
        return self.first.pop(producer, None)

    def expire(self, silent_ms: int) -> None:
        """Forget rejections older than `producer.id.expiration.ms`, as logs forget producers."""
        if not self._last:
            return
        before = self._ticks_ms() - silent_ms
        for producer in [each for each, last in self._last.items() if last < before]:
            self.end(producer)

    def _keep(self, producer: int, refused: tuple[int, int]) -> None:
        self.first[producer] = refused
        self._last[producer] = self._ticks_ms()
