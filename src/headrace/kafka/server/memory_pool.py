"""Memory of requests."""

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from headrace.records.accelerator import unfilled

FIRST_BYTES = 1 << 20
"""Initial bytes of a frame; it grows as bytes arrive."""
SMALL_BYTES = 64 << 10
"""Bytes that each connection may use even without free memory, so that small requests do not wait for large ones."""
MOST_OPENED = 16
"""Maximum number of large requests served at a time; decoded, each takes about ten times its bytes."""
_STEP_BYTES = 8 << 20


class Sender(Protocol):
    """A connection that may pause reading."""

    def resume(self) -> None:
        """Continue."""


class Request(Protocol):
    """A request in flight."""

    size: int
    """Bytes of the request."""
    large: bool
    """Whether it is one of the large requests being served."""
    parked: int
    """Bytes counted while it waits for something other than the server."""


class MemoryPool:
    """Counts the bytes of requests (`queued.max.request.bytes`).

    Without free memory, reading is paused. One connection may always continue, as incomplete requests could deadlock.
    """

    def __init__(self, limit: int) -> None:
        """A negative `limit` is none."""
        self.limit = limit
        self.used = 0
        self.pressed: Callable[[], None] | None = None
        """Called when a connection begins to wait."""
        self.parked = 0
        """Bytes of requests that wait for something other than the server, such as a Fetch for records. At most half of
        the memory is for these.
        """
        self._favoured: Sender | None = None
        self._waiting: dict[Sender, None] = {}
        self._opened = 0
        self._unopened: dict[Sender, None] = {}
        """Connections waiting to have a large request read, in order of arrival."""

    def may_open(self, sender: Sender) -> bool:
        """Return whether to decode a large request now, or queue its sender. Call `had_turn` afterwards."""
        free = max(0, MOST_OPENED - self._opened)
        is_next = sender in islice(self._unopened, free) if sender in self._unopened else len(self._unopened) < free
        if is_next:
            self._unopened.pop(sender, None)
        else:
            self._unopened[sender] = None
        return is_next

    def had_turn(self, sender: Sender, *, waits: bool) -> None:
        """End a sender's turn; `waits`: it needs another one."""
        if self._unopened:
            if not waits:
                self._unopened.pop(sender, None)
            self._open_others()

    def open(self, request: Request) -> None:
        """Count a large request that is served."""
        request.large = True
        self._opened += 1

    def settle(self, request: Request) -> None:
        """Free the slot of a large request."""
        if not request.large:
            return
        request.large = False
        self._opened -= 1
        self._open_others()

    def _open_others(self) -> None:
        for sender in tuple(islice(self._unopened, max(0, MOST_OPENED - self._opened))):
            sender.resume()

    def park(self, request: Request, more: int) -> bool:
        """See `RequestContext.may_wait`."""
        request.size += more
        self.used += more
        request.parked = request.size
        self.parked += request.size
        self.settle(request)
        return not self.many_parked

    def unpark(self, request: Request) -> None:
        """Stop counting a waiting request."""
        self.parked -= request.parked
        request.parked = 0

    @property
    def short(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether reading must pause."""
        return 0 <= self.limit < self.used

    @property
    def many_parked(self) -> bool:
        """Whether waiting requests take too many bytes."""
        return 0 <= self.limit < 2 * self.parked

    def add(self, size: int) -> None:
        """Count bytes."""
        self.used += size

    def free(self, size: int) -> None:
        """Release bytes."""
        self.used -= size
        if self._waiting and not self.full:
            self._go_on()

    def may_grow(self, sender: Sender, size: int) -> bool:
        """Return whether a sender may use more bytes."""
        if self.limit < 0 or self.used + size <= self.limit:
            return True
        if self._favoured is None:
            self._favoured = sender
        return self._favoured is sender

    def wait(self, sender: Sender) -> None:
        """Resume the sender when memory is free."""
        self._waiting[sender] = None
        if self.pressed is not None:
            self.pressed()

    def forget(self, sender: Sender) -> None:
        """Remove a lost sender."""
        self.done(sender)
        self._unopened.pop(sender, None)
        self._open_others()

    def done(self, sender: Sender) -> None:
        """Handle a complete frame or a lost sender."""
        self._waiting.pop(sender, None)
        if self._favoured is sender:
            self._favoured = None
            if self._waiting:
                self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for sender in waiting:
            sender.resume()


class Frame:
    """A request larger than one read. Its memory grows with the received bytes, not with its announced size."""

    __slots__ = ("_bytes", "_filled", "_memory", "_sender", "_view", "size")

    def __init__(self, size: int, begun: memoryview, memory: MemoryPool, sender: Sender) -> None:
        self.size = size
        self._memory = memory
        self._sender = sender
        self._filled = len(begun)
        capacity = min(size, max(SMALL_BYTES if memory.full else FIRST_BYTES, self._filled))
        self._bytes = unfilled(capacity)
        self._view = memoryview(self._bytes)
        self._view[: self._filled] = begun
        memory.add(capacity)

    @property
    def filled(self) -> int:
        """Bytes received."""
        return self._filled

    def room(self) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._filled == len(self._bytes):
            self._grow()
        return self._view[self._filled :]

    @property
    def _more(self) -> int:
        present = len(self._bytes)
        return min(self.size - present, present, _STEP_BYTES)

    def _grow(self) -> None:
        more = self._more
        self._view.release()
        self._bytes += bytes(more)
        self._view = memoryview(self._bytes)
        self._memory.add(more)

    def took(self, count: int) -> bool:
        """Count received bytes, and return whether it is complete."""
        self._filled += count
        return self._filled == self.size

    @property
    def starved(self) -> bool:
        """Whether it must grow and may not."""
        return self._filled == len(self._bytes) < self.size and not self._memory.may_grow(self._sender, self._more)

    def take(self) -> memoryview:
        """Return the complete request and stop counting it."""
        self.drop()
        return self._view

    def drop(self) -> None:
        """Release the bytes."""
        self._memory.done(self._sender)
        self._memory.free(len(self._bytes))
