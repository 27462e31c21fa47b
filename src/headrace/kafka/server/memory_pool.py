"""Memory of the requests of all connections together, from their first byte until they are answered."""

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from headrace.records.accelerator import unfilled

FIRST_BYTES = 1 << 20
"""What a frame gets at once; the rest of what it announced comes as its bytes do."""
SMALL_BYTES = 64 << 10
"""What each connection may have even where there is no room: who asks for little does not wait for those who do not."""
MOST_OPENED = 16
"""Large requests that are read and answered at a time; what they name takes some ten times what they have in bytes."""
_STEP_BYTES = 8 << 20


class Sender(Protocol):
    """A connection that may have to wait before it is read from again."""

    def resume(self) -> None:
        """There is memory again, or a large request may be read now."""


class Request(Protocol):
    """A request under way."""

    size: int
    """Its bytes."""
    large: bool
    """Whether it is one of the large ones that are read and answered now."""
    parked: int
    """Bytes that it is counted with while it waits for something else than the server."""


class MemoryPool:
    """Bytes of requests: `queued.max.request.bytes`.

    Where there is no room, connections are not read from until there is. One of them goes on all the same, whatever it
    takes (`socket.request.max.bytes` at most): else half-sent requests could wait for each other for ever.
    """

    def __init__(self, limit: int) -> None:
        """Nothing is held. `limit` below 0: there is none."""
        self.limit = limit
        self.used = 0
        self.pressed: Callable[[], None] | None = None
        """Called when a connection begins to wait."""
        self.parked = 0
        """Bytes of those requests that wait for something else than the server, for as long as they like: a Fetch for
        records, a member for others. They leave half of all to those that are served."""
        self._favoured: Sender | None = None
        self._waiting: dict[Sender, None] = {}
        self._opened = 0
        self._unopened: dict[Sender, None] = {}
        """Those who wait to have a large request read, in the order in which they came."""

    def may_open(self, sender: Sender) -> bool:
        """Whether a large request may be read now; its sender keeps its place and is told when it may, otherwise.

        Call `had_turn` behind what was read.
        """
        free = max(0, MOST_OPENED - self._opened)
        is_next = sender in islice(self._unopened, free) if sender in self._unopened else len(self._unopened) < free
        if is_next:
            self._unopened.pop(sender, None)
        else:
            self._unopened[sender] = None
        return is_next

    def had_turn(self, sender: Sender, *, waits: bool) -> None:
        """A sender has read what it could; `waits`: for another turn. What it left free is for the next."""
        if self._unopened:
            if not waits:
                self._unopened.pop(sender, None)
            self._open_others()

    def open(self, request: Request) -> None:
        """A large request is being read."""
        request.large = True
        self._opened += 1

    def settle(self, request: Request) -> None:
        """A request is answered, or only waits from now on: where it was a large one, another may be read."""
        if not request.large:
            return
        request.large = False
        self._opened -= 1
        self._open_others()

    def _open_others(self) -> None:
        """Tell those who wait to have a large request read, as many as there is room for."""
        for sender in tuple(islice(self._unopened, max(0, MOST_OPENED - self._opened))):
            sender.resume()

    def park(self, request: Request, more: int) -> bool:
        """A request waits for something else than the server from now on; whether it may for as long as it likes.

        `more`: bytes that it takes beside those that came.
        """
        request.size += more
        self.used += more
        request.parked = request.size
        self.parked += request.size
        self.settle(request)
        return not self.many_parked

    def unpark(self, request: Request) -> None:
        """It is answered, or its client is gone."""
        self.parked -= request.parked
        request.parked = 0

    @property
    def short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    @property
    def full(self) -> bool:
        """Whether no more should be read."""
        return 0 <= self.limit < self.used

    @property
    def many_parked(self) -> bool:
        """Whether so much waits for something else that no more should."""
        return 0 <= self.limit < 2 * self.parked

    def add(self, size: int) -> None:
        """Count bytes of requests that are held."""
        self.used += size

    def free(self, size: int) -> None:
        """Give bytes back; connections that wait go on where there is room."""
        self.used -= size
        if self._waiting and not self.full:
            self._go_on()

    def may_grow(self, sender: Sender, size: int) -> bool:
        """Whether a sender may have so many bytes more."""
        if self.limit < 0 or self.used + size <= self.limit:
            return True
        if self._favoured is None:
            self._favoured = sender
        return self._favoured is sender

    def wait(self, sender: Sender) -> None:
        """Tell the sender when there is room again."""
        self._waiting[sender] = None
        if self.pressed is not None:
            self.pressed()

    def forget(self, sender: Sender) -> None:
        """The sender is gone."""
        self.done(sender)
        self._unopened.pop(sender, None)
        self._open_others()

    def done(self, sender: Sender) -> None:
        """The sender's frame is complete, or the sender is gone."""
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
    """A request longer than one read brings. Its memory grows as its bytes arrive, not by what it announced."""

    __slots__ = ("_bytes", "_filled", "_memory", "_sender", "_view", "size")

    def __init__(self, size: int, begun: memoryview, memory: MemoryPool, sender: Sender) -> None:
        """Begin.

        Args:
            size: bytes announced.
            begun: those that are here.
            memory: what it is counted in.
            sender: who sends it.
        """
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
        """Bytes that are here."""
        return self._filled

    def room(self) -> memoryview:
        """Where the next bytes go."""
        if self._filled == len(self._bytes):
            self._grow()
        return self._view[self._filled :]

    @property
    def _more(self) -> int:
        """By how much it grows next."""
        present = len(self._bytes)
        return min(self.size - present, present, _STEP_BYTES)

    def _grow(self) -> None:
        more = self._more
        self._view.release()
        self._bytes += bytes(more)
        self._view = memoryview(self._bytes)
        self._memory.add(more)

    def took(self, count: int) -> bool:
        """So many bytes came; whether it is complete."""
        self._filled += count
        return self._filled == self.size

    @property
    def starved(self) -> bool:
        """Whether it has to grow for the next byte and may not."""
        return self._filled == len(self._bytes) < self.size and not self._memory.may_grow(self._sender, self._more)

    def take(self) -> memoryview:
        """The complete request, which is not counted here any more."""
        self.drop()
        return self._view

    def drop(self) -> None:
        """Give its bytes back: the request will not be served."""
        self._memory.done(self._sender)
        self._memory.free(len(self._bytes))
