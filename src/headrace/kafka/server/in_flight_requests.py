"""Decide which requests of a connection are served now.

As in Kafka, a connection has one request in flight. However, a Produce may follow a Produce, so that Redis gets their
batches together.
"""

from collections import deque
from time import perf_counter

from headrace.broker.runtime.scheduler import PACKED_S, SLICE_S, TURN_S
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ProduceRequest

PRODUCE = ProduceRequest.API_KEY

PAUSE_REQUESTS = 2_000
"""Requests in flight on one connection before reading is paused."""
PAUSE_BYTES = 64 << 20
"""Bytes of such requests before reading is paused."""
LARGE = 16 << 10
"""Bytes of a request without records from which it gets a separate slice: it may have thousands of elements."""
_SHORT = 1 << 10
"""Maximum bytes of a request without records that is served at once under load."""
_QUOTA = 32
"""Requests served between checks of the clock."""
_DUE_BYTES = 1 << 20
"""Unwritten response bytes at which serving is paused."""


class InFlightRequests:
    """Requests in flight on one connection, which updates the counters directly."""

    __slots__ = ("_packed", "_until", "crowded", "due_bytes", "exclusive", "kept", "kept_bytes", "muted", "produces",
                 "quota", "waiting", "waiting_bytes", "write_paused")  # fmt: skip

    def __init__(self) -> None:
        self.waiting: deque[RequestContext] = deque()
        """Requests in flight or with unwritten responses, in order of arrival."""
        self.waiting_bytes = 0
        """Bytes of these and of the kept requests."""
        self.kept = 0
        """Timed-out requests whose work continues."""
        self.kept_bytes = 0
        """Bytes of the kept requests."""
        self.produces = 0
        """Unanswered Produce requests."""
        self.exclusive = 0
        """Above 0 while an exclusive request is unanswered or the client is throttled."""
        self.due_bytes = 0
        """Bytes of unwritten responses."""
        self.write_paused = False
        """Whether the client does not read its responses."""
        self.muted = False
        """Whether the client is throttled; set by `mute` and `unmute`."""
        self.quota = _QUOTA
        """Requests left until the next check of the clock."""
        self._until = 0.0  # end of the slice
        self.crowded = False
        """Whether only urgent requests are served, because of the load in this loop turn."""
        self._packed = False  # only short requests and simple Produce requests are served

    def begin_slice(self, now: float, turn_began: float) -> None:
        """Start a slice at `now` (`time.perf_counter`)."""
        self._until = now + SLICE_S
        served_s = now - turn_began
        self.crowded = served_s >= TURN_S
        self._packed = served_s >= PACKED_S
        if self._packed:
            self._until, self.quota = now, 1

    def keep(self, context: RequestContext) -> None:
        """Count a timed-out request until its work completes."""
        context.kept, context.size = context.size, 0
        self.kept += 1
        self.kept_bytes += context.kept

    def let_go(self, context: RequestContext) -> int:
        """Stop counting a kept request, and return its bytes."""
        kept, context.kept = context.kept, 0
        if kept:
            self.kept -= 1
            self.kept_bytes -= kept
            self.waiting_bytes -= kept
        return kept

    def mute(self) -> None:
        """Pause serving."""
        if not self.muted:
            self.muted = True
            self.exclusive += 1

    def unmute(self) -> None:
        """Resume serving."""
        if self.muted:
            self.muted = False
            self.exclusive -= 1

    def must_wait(self, key: int, size: int) -> bool:
        """Return whether a received request must wait."""
        return (
            self.must_wait_for_others(key)
            or self.slice_over()
            or (self.crowded and (not _is_urgent(key) or (self._packed and size > _SHORT and key != PRODUCE)))
            or (size > LARGE and key != PRODUCE)
        )

    def must_wait_for_others(self, key: int) -> bool:
        """Return whether a request must wait for earlier ones or the client."""
        if self.exclusive:
            return True
        if key == PRODUCE:
            return False
        return (
            self.produces > 0 or self.write_paused or self.due_bytes > _DUE_BYTES or len(self.waiting) > PAUSE_REQUESTS
        )

    def slice_over(self) -> bool:
        """Return whether the slice is over, with few reads of the clock."""
        if self.quota >= 0:
            return False
        self.quota = _QUOTA
        return perf_counter() >= self._until

    def must_wait_if_not_plain(self, size: int) -> bool:
        """Return whether a Produce with several partitions must wait."""
        return self._packed and size > _SHORT

    @property
    def may_read(self) -> bool:
        """Whether few enough requests are in flight."""
        return len(self.waiting) + self.kept <= PAUSE_REQUESTS // 2 and self.waiting_bytes <= PAUSE_BYTES // 2

    def leave(self) -> None:
        """Handle a lost client: only a Produce that is being placed still waits."""
        self.exclusive = sum(each.alone and not each.done for each in self.waiting)


def _is_urgent(key: int) -> bool:
    api = APIS.get(key)
    return api is not None and api.urgent
