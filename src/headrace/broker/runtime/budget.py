"""Bytes of records between the storage and the clients, over all listeners and virtual clusters.

An answer takes what it may grow to before it reads, gives back what it did not need, and the rest when the client has
taken it or is gone. What was read ahead counts too, and goes first when memory is short. So no number of requests, of
clients that do not read, or of clients that left, can take more than this; the shorter the budget gets the smaller the
answers become, and at last they wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.topics.model import StoredBatch

DEFAULT_BYTES = 256 << 20
BESIDE_BYTES = 64 << 20
"""Of records that are too large for the share that their reader has, and of those that are looked into."""
_LEAST_SHARE = 64 << 10
"""Bytes that an answer is worth beginning with."""
_LEAST_AHEAD = 256 << 10
"""Bytes that reading ahead is worth beginning with."""


class NeedsRoom(Exception):  # no fault: the same is asked again
    """The next record is larger than there was room for: nothing was read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size
        """Its bytes."""


class ReadBudget:
    """Bytes that all answers under way may hold together."""

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        """Nothing is held.

        Args:
            limit: bytes. One answer alone may have more, where a single record batch is larger.
        """
        self.limit = limit
        self.used = 0
        self.pressed: list[Callable[[], None]] = []
        """Called when somebody begins to wait: those who do not take their answers can be looked for."""
        self._waiting: deque[Waiter] = deque()
        self._ahead: dict[ReadAheadBudget, None] = {}

    @property
    def short(self) -> bool:
        """Whether answers wait for memory."""
        return bool(self._waiting)

    def grant(self, wanted: int, least: int = _LEAST_SHARE) -> int:
        """Take bytes for an answer.

        Args:
            wanted: what it may grow to.
            least: what it needs to be of use, such as the largest batch that may come first.

        Returns:
            The bytes taken: `wanted`, or half of what is left when that is less, but never below `least`, which may
            be above `wanted`. 0: there is no room, or others wait; see `wait`.
        """
        if self._waiting:
            return 0
        return self._grant(wanted, least)

    def _grant(self, wanted: int, least: int) -> int:
        free = self.limit - self.used
        taken = max(least, min(wanted, free >> 1))
        if taken > free and self._ahead:
            self._drop_ahead(taken)
            free = self.limit - self.used
        # Who is alone gets what it needs whatever the limit: else it would wait for ever.
        if taken > free and self.used > 0:
            return 0
        self.used += taken
        return taken

    def take(self, size: int) -> None:
        """Count bytes that are there already, also above the limit: others then wait for them."""
        self.used += size

    def release(self, size: int) -> None:
        """Give bytes back, and go on with those who wait for them."""
        self.used -= size
        if self._waiting:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting:
            waiter = self._waiting[0]
            if waiter.again is None:
                self._waiting.popleft()
                continue
            granted = self._grant(waiter.wanted, waiter.least)
            if not granted:
                return
            self._waiting.popleft()
            asyncio.get_running_loop().call_soon(waiter.run, granted)

    def go_on_without(self, waiter: "Waiter") -> None:
        """One of those who wait does so no longer."""
        if self._waiting and self._waiting[0] is waiter:
            self._go_on()

    def wait(self, wanted: int, least: int, again: Callable[[int], None]) -> "Waiter":
        """Call `again` with the bytes taken, as `grant` would answer, once there are any; in the order of asking."""
        waiter = Waiter(self, wanted, least, again)
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._go_on()
            if self._waiting:
                for look in self.pressed:
                    look()
        return waiter

    async def acquire(self, wanted: int, least: int = _LEAST_SHARE) -> int:
        """As `grant`, but waits; the bytes taken. Who wants none waits for nobody."""
        if not wanted:
            return 0
        granted = self.grant(wanted, least)
        if granted:
            return granted
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def again(granted: int) -> None:
            if future.cancelled():
                self.release(granted)
            else:
                future.set_result(granted)

        waiter = self.wait(wanted, least, again)
        try:
            return await future
        except asyncio.CancelledError:
            waiter.cancel()
            if future.done() and not future.cancelled():
                self.release(future.result())
            raise

    @asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Have so many bytes meanwhile; waits for them."""
        granted = await self.acquire(size, size)
        try:
            yield
        finally:
            self.release(granted)

    # Read-ahead

    def read_ahead(self, wanted: int, drop: Callable[[], None]) -> "ReadAheadBudget | None":
        """Take bytes for what nobody has asked for yet; None when too little is free.

        Args:
            wanted: bytes; fewer are taken where that would leave less than a quarter of the budget free.
            drop: lets go of what was read; called when an answer needs the memory, or nobody comes for it.
        """
        size = min(wanted, self.limit - (self.limit >> 2) - self.used)
        if self._waiting or size < min(wanted, _LEAST_AHEAD):
            return None
        ahead = ReadAheadBudget(self, size, drop)
        self._ahead[ahead] = None
        self.used += size
        return ahead

    def _drop_ahead(self, wanted: int) -> None:
        """Drop what was read ahead, the oldest first, until there is room."""
        for ahead in tuple(self._ahead):
            if self.used + wanted <= self.limit:
                return
            ahead.drop()

    def resize(self, ahead: "ReadAheadBudget", size: int) -> None:
        """Count another size for something read ahead, if it is still counted."""
        if ahead in self._ahead:
            self.used += size - ahead.size
            ahead.size = size

    def forget(self, ahead: "ReadAheadBudget") -> bool:
        """Give back what was read ahead; False when that has happened before."""
        if ahead not in self._ahead:
            return False
        del self._ahead[ahead]
        self.release(ahead.size)
        return True


class Waiter:
    """Somebody who waits for a share of the budget."""

    __slots__ = ("_budget", "again", "least", "wanted")

    def __init__(self, budget: ReadBudget, wanted: int, least: int, again: Callable[[int], None]) -> None:
        self._budget = budget
        self.wanted = wanted
        self.least = least
        self.again: Callable[[int], None] | None = again

    def cancel(self) -> None:
        """Wait no longer; what was taken a moment ago goes back. Who is behind may want less."""
        self.again = None
        self._budget.go_on_without(self)

    def run(self, granted: int) -> None:
        """Hand the bytes that were granted to the answer that waits, or give them back if it was cancelled."""
        again, self.again = self.again, None
        if again is None:
            self._budget.release(granted)
        else:
            again(granted)


class ReadAheadBudget:
    """Bytes that are read ahead of their reader."""

    KEEP_S = 5.0
    """How long they are kept for one that does not come back."""

    __slots__ = ("_budget", "_came", "_drop", "_dropped", "_timer", "size")

    def __init__(self, budget: ReadBudget, size: int, drop: Callable[[], None]) -> None:
        self._budget = budget
        self._drop = drop
        self._came = False
        self._dropped = False
        self.size = size
        """Bytes counted: what may be read, then what was."""
        self._timer = asyncio.get_running_loop().call_later(self.KEEP_S, self.drop)

    def came(self, size: int) -> None:
        """So many bytes have been read, or none: it failed."""
        self._came = True
        self._budget.resize(self, size)
        if self._dropped:
            self._budget.forget(self)

    def drop(self) -> None:
        """Let go of them, or hand them to their reader. What Redis is still to send counts until it is here."""
        self._timer.cancel()
        if self._dropped:
            return
        self._dropped = True
        self._drop()
        if self._came:
            self._budget.forget(self)


def bytes_of(reading: "asyncio.Future[list[StoredBatch]]") -> int:
    """What a read has brought; nothing when it failed."""
    if reading.cancelled() or reading.exception() is not None:
        return 0
    return sum(len(found.batch) for found in reading.result())
