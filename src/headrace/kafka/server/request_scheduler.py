"""Which requests of one connection are served now, and which wait: for those before them, or for their turn.

As in Kafka, a connection has one request in flight, and the next one is served when that is answered. The one exception
is that a Produce may follow a Produce: batches of several requests are on their way to Redis together. Other clients
count on their turn, so what takes long waits for one. This class decides; it serves nothing itself.
"""

from collections import deque
from time import perf_counter

from headrace.broker.runtime.scheduler import PACKED_S, SLICE_S, TURN_S
from headrace.kafka.server.registry import APIS
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import ProduceRequest

PRODUCE = ProduceRequest.API_KEY

PAUSE_REQUESTS = 2_000
"""Requests of one connection under way before it is not read from for a while."""
PAUSE_BYTES = 64 << 20
"""Bytes of such requests before it is not."""
LARGE = 16 << 10
"""Bytes of a request without records that is read in a slice of its own: it may be made of thousands of elements."""
_SHORT = 1 << 10
"""Bytes of a request without records that comes in its turn however many others do: hundreds may come with as many
partitions or topics as go into `LARGE` bytes, which take a millisecond."""
_QUOTA = 32
"""Requests that are served before the clock is looked at."""
_DUE_BYTES = 1 << 20
"""Bytes of answers that wait to be written before no more requests are served."""


class Order:
    """The requests of one connection that are in flight.

    What is public is counted by the connection in place, where a call for each request would cost.
    """

    __slots__ = ("_packed", "_until", "crowded", "due_bytes", "exclusive", "kept", "kept_bytes", "muted", "produces",
                 "quota", "waiting", "waiting_bytes", "write_paused")  # fmt: skip

    def __init__(self) -> None:
        """Nothing is in flight."""
        self.waiting: deque[RequestContext] = deque()
        """Those in flight and those answered and not written, in the order they came."""
        self.waiting_bytes = 0
        """Of their requests, and of those that are kept."""
        self.kept = 0
        """Requests that were given up, and of which what they asked for is still under way."""
        self.kept_bytes = 0
        """Their bytes."""
        self.produces = 0
        """Produce requests without an answer yet."""
        self.exclusive = 0
        """Above 0 while nothing may be served: a request that nothing may follow has no answer yet, or the client has
        to wait for its quota."""
        self.due_bytes = 0
        """Of answers that were given and not written."""
        self.write_paused = False
        """Whether the client does not read its answers."""
        self.muted = False
        """Whether the client has to wait for its quota: `mute` and `unmute` change it."""
        self.quota = _QUOTA
        """Requests that may be served before the clock is looked at; each takes one."""
        self._until = 0.0  # when the present slice of serving ends
        self.crowded = False
        """Whether so many others were served in this turn of the loop that only what is urgent comes now."""
        self._packed = False  # and whether they were so many that only what is short does, and plain Produce requests

    def begin_slice(self, now: float, turn_began: float) -> None:
        """Requests are served from now on (`time.perf_counter`).

        Args:
            now: the present time.
            turn_began: when the first client's were, in this turn of the loop.
        """
        self._until = now + SLICE_S
        served_s = now - turn_began
        self.crowded = served_s >= TURN_S
        self._packed = served_s >= PACKED_S
        if self._packed:
            # One more, and the clock is looked at.
            self._until, self.quota = now, 1

    def keep(self, context: RequestContext) -> None:
        """Count a request until what it asked for is through: it is given up."""
        context.kept, context.size = context.size, 0
        self.kept += 1
        self.kept_bytes += context.kept

    def let_go(self, context: RequestContext) -> int:
        """That is through; how many bytes are counted no longer. Does nothing where none were."""
        kept, context.kept = context.kept, 0
        if kept:
            self.kept -= 1
            self.kept_bytes -= kept
            self.waiting_bytes -= kept
        return kept

    def mute(self) -> None:
        """Serve nothing."""
        if not self.muted:
            self.muted = True
            self.exclusive += 1

    def unmute(self) -> None:
        """Go on as before."""
        if self.muted:
            self.muted = False
            self.exclusive -= 1

    def must_wait(self, key: int, size: int) -> bool:
        """Whether a request that came, of API `key` and so many bytes, has to wait."""
        return (
            self.must_wait_for_others(key)
            or self.slice_over()
            or (self.crowded and (not _is_urgent(key) or (self._packed and size > _SHORT and key != PRODUCE)))
            or (size > LARGE and key != PRODUCE)
        )

    def must_wait_for_others(self, key: int) -> bool:
        """Whether a request of API `key` has to wait for those before it, or for the client."""
        if self.exclusive:
            return True
        if key == PRODUCE:
            return False
        return (
            self.produces > 0 or self.write_paused or self.due_bytes > _DUE_BYTES or len(self.waiting) > PAUSE_REQUESTS
        )

    def slice_over(self) -> bool:
        """Whether requests were served for so long that others come first. The clock is looked at now and then only."""
        if self.quota >= 0:
            return False
        self.quota = _QUOTA
        return perf_counter() >= self._until

    def must_wait_if_not_plain(self, size: int) -> bool:
        """Whether a Produce request of so many bytes waits unless it is for one partition: it may name hundreds."""
        return self._packed and size > _SHORT

    @property
    def may_read(self) -> bool:
        """Whether so little is in flight that more requests may be read."""
        return len(self.waiting) + self.kept <= PAUSE_REQUESTS // 2 and self.waiting_bytes <= PAUSE_BYTES // 2

    def leave(self) -> None:
        """The client has left: nothing waits for an answer, only for a Produce that is placed turn by turn."""
        self.exclusive = sum(each.alone and not each.done for each in self.waiting)


def _is_urgent(key: int) -> bool:
    api = APIS.get(key)
    return api is not None and api.urgent
