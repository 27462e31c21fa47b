"""Which requests of one connection are served now, and which are put off: for what they depend on, or for their turn.

A client that sends ahead counts on each request seeing what came before it, and other clients count on their turn. This
is the account by which that is decided; it serves nothing itself.
"""

from collections import deque
from time import perf_counter

from headrace.broker.runtime.scheduler import PACKED_S, SLICE_S, TURN_S
from headrace.kafka.server.request_context import RequestContext
from headrace.protocol.messages import (
    ApiVersionsRequest,
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    MetadataRequest,
    OffsetCommitRequest,
    ProduceRequest,
    SyncGroupRequest,
)

PRODUCE, FETCH, METADATA = ProduceRequest.API_KEY, FetchRequest.API_KEY, MetadataRequest.API_KEY
COMMIT = OffsetCommitRequest.API_KEY
MEMBERS = frozenset({JoinGroupRequest.API_KEY, SyncGroupRequest.API_KEY})
_HELD = frozenset({FETCH, *MEMBERS})
"""They may be held for long, and nothing but Metadata depends on their end."""
_URGENT = frozenset({PRODUCE, FETCH, METADATA, HeartbeatRequest.API_KEY, ApiVersionsRequest.API_KEY})
"""These are served while clients come in a crowd: they are cheap, and records depend on them, or whether a member or
the server is held to be alive."""

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
_MOST_JOINS = 20
"""JoinGroup and SyncGroup requests that one connection has under way; real members have one."""
_DUE_BYTES = 1 << 20
"""Bytes of answers that wait to be written before no more requests are served."""


class Order:
    """The requests of one connection: those under way, and those put off.

    What is public is counted by the connection in place, where a call for each request would cost.
    """

    __slots__ = ("_joins", "_packed", "_until", "ahead", "crowded", "due_bytes", "fetches", "kept", "kept_bytes",
                 "muted", "others", "produces", "put_off", "quota", "waiting", "waiting_bytes",
                 "write_paused")  # fmt: skip

    def __init__(self) -> None:
        """Nothing is under way."""
        self.waiting: deque[RequestContext] = deque()
        """Those under way and those answered and not written, in the order they came."""
        self.waiting_bytes = 0
        """Of their requests, and of those that are kept."""
        self.kept = 0
        """Requests that were given up, and of which what they asked for is still under way."""
        self.kept_bytes = 0
        """Their bytes."""
        self.put_off: deque[tuple[memoryview, int]] = deque()
        """Requests that wait for their turn, with the time of their arrival (ticks); their memory is their own."""
        self.produces = 0
        """Produce requests without an answer yet."""
        self.fetches = 0
        self.others = 0
        """The same of other requests, but for the held ones."""
        self._joins = 0  # JoinGroup and SyncGroup
        self.ahead = 0
        """Bytes of those put off that were sent ahead of requests which may be held for long."""
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

    def begin(self, key: int) -> None:
        """A request that is no Produce is under way."""
        if key == FETCH:
            self.fetches += 1
        elif key in _HELD:
            self._joins += 1
        else:
            self.others += 1

    def end(self, key: int) -> None:
        """A request was answered."""
        if key == FETCH:
            self.fetches -= 1
        elif key in _HELD:
            self._joins -= 1
        else:
            self.others -= 1

    def park_ahead(self, size: int) -> int:
        """A request is put off; how many of its bytes wait for as long as those that are held, which may be long."""
        held = size if self.fetches or self._joins else 0
        self.ahead += held
        return held

    def unpark_ahead(self, size: int) -> int:
        """So many bytes of those put off are so no longer; how many of them were counted by `park_ahead`."""
        counted = min(size, self.ahead)
        self.ahead -= counted
        return counted

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
        """Put everything off."""
        if not self.muted:
            self.muted = True
            # By this the connection sees that it has to ask about Produce requests too.
            self.others += 1

    def unmute(self) -> None:
        """Go on as before."""
        if self.muted:
            self.muted = False
            self.others -= 1

    def must_wait(self, key: int, size: int) -> bool:
        """Whether a request that came, of API `key` and so many bytes, has to be put off."""
        return (
            bool(self.put_off)
            or (self.quota < 0 and self._slice_over())
            or (self.crowded and (key not in _URGENT or (self._packed and size > _SHORT and key != PRODUCE)))
            or ((self.others > 0 or key != PRODUCE) and (size > LARGE or self._depends(key)))
        )

    def must_wait_if_not_plain(self, size: int) -> bool:
        """Whether a Produce request of so many bytes waits unless it is for one partition: it may name hundreds."""
        return self._packed and size > _SHORT

    @property
    def large_next(self) -> bool:
        """Whether the first of those put off may be served, and be made of thousands of elements."""
        return self.ready and len(self.put_off[0][0]) > LARGE and _key_of(self.put_off[0][0]) != PRODUCE

    @property
    def ready(self) -> bool:
        """Whether the first of those put off need not wait for those under way any more."""
        return bool(self.put_off) and not self._depends(_key_of(self.put_off[0][0]))

    def may_hear(self, now_ms: int) -> bool:
        """Whether to take what has come while requests are put off, to know when it came: a commit waits for storage.

        It has since an earlier look than this one (ticks), and the time of those behind it counts from their arrival.
        """
        if not self.put_off or self.muted or self.write_paused:
            return False
        return any(each.api_key == COMMIT and not each.done and 0 <= each.seen_ms < now_ms for each in self.waiting)

    @property
    def may_read(self) -> bool:
        """Whether so little is under way that more requests may be read."""
        few = len(self.waiting) + self.kept <= PAUSE_REQUESTS // 2 and self.waiting_bytes <= PAUSE_BYTES // 2
        return few and not self.put_off

    def take(self) -> tuple[int, memoryview, int] | None:
        """The first of those put off, taken out to be served; None: what is left has to wait.

        API key, request, time of its arrival.
        """
        if not self.put_off:
            return None
        frame, arrived_ms = self.put_off[0]
        key = _key_of(frame)
        if self._depends(key):
            return None
        self.quota -= 1
        if self.quota < 0 and self._slice_over():
            return None
        self.put_off.popleft()
        return key, frame, arrived_ms

    def leave(self) -> list[memoryview]:
        """The client has left: what was put off, but for Produce, is taken out.

        The others wait for those alone that are placed turn by turn.
        """
        dropped = [frame for frame, _ in self.put_off if _key_of(frame) != PRODUCE]
        self.put_off = deque(each for each in self.put_off if _key_of(each[0]) == PRODUCE)
        self.others = sum(each.alone and not each.done for each in self.waiting)
        return dropped

    def _slice_over(self) -> bool:
        """Whether requests were served for so long that others come first. The clock is looked at now and then only."""
        self.quota = _QUOTA
        return perf_counter() >= self._until

    def _depends(self, key: int) -> bool:
        """Whether a request has to wait for those under way, whose outcome it may have to see, or for the client.

        Produce after Produce need not: order is kept. What may be held for long holds up nothing but its like, so that
        no client has more than one Fetch answer under way. Metadata tells what is so when the answer leaves, as in
        Kafka: one made at once would leave behind a Fetch that waits, and together with the next one. A client that is
        told the old leader and the new one in a row may stay at the old one (decision 52).
        """
        if self.muted:
            return True
        if key == PRODUCE:
            return self.others > 0
        if self.write_paused or self.due_bytes > _DUE_BYTES or len(self.waiting) > PAUSE_REQUESTS:
            return True
        if key == FETCH:
            return self.fetches > 0
        if key in _HELD:
            return self._joins >= _MOST_JOINS
        return self.others > 0 or self.produces > 0 or (key == METADATA and self.fetches > 0)


def _key_of(frame: memoryview) -> int:
    return int.from_bytes(frame[:2], "big")
