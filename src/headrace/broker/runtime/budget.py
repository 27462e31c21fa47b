"""Memory for records between storage and clients, of all listeners and virtual clusters.

A response reserves its maximum before it reads, then releases the surplus, and the rest when the client has received it
or disconnected. Read-ahead data counts too, and is dropped first. When the budget is short, responses get smaller, then
wait: slow or disconnected clients cannot exceed it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.topics.model import StoredBatch

DEFAULT_BYTES = 256 << 20
LARGE_READS_BYTES = 64 << 20
"""For records larger than their reader's share, and for records that are searched."""
_LEAST_SHARE = 64 << 10
"""Minimum bytes to start a response."""
_LEAST_AHEAD = 256 << 10
"""Minimum bytes to start reading ahead."""


class NeedsRoom(Exception):  # not a failure: the caller retries
    """The next record is larger than the available memory. Nothing was read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size
        """Size in bytes."""


class ReadBudget:
    """Limit on the bytes of all responses in progress."""

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        """A single response may exceed `limit` for a larger record batch."""
        self.limit = limit
        self.used = 0
        self.pressed: list[Callable[[], None]] = []
        """Called when a response starts to wait, to find clients that do not read."""
        self._waiting: deque[Waiter] = deque()
        self._ahead: dict[ReadAheadBudget, None] = {}

    @property
    def short(self) -> bool:
        """Whether responses wait for memory."""
        return bool(self._waiting)

    def grant(self, wanted: int, least: int = _LEAST_SHARE) -> int:
        """Reserve bytes for a response.

        Returns:
            `wanted` or half of the free bytes, but at least `least`, which may exceed `wanted`. 0: no room, or others
            wait.
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
        # A single response gets what it needs whatever the limit, or it would wait for ever.
        if taken > free and self.used > 0:
            return 0
        self.used += taken
        return taken

    def take(self, size: int) -> None:
        """Count bytes that exist already, even above the limit."""
        self.used += size

    def release(self, size: int) -> None:
        """Release bytes, and continue waiting responses."""
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
        """Continue without a canceled waiter."""
        if self._waiting and self._waiting[0] is waiter:
            self._go_on()

    def wait(self, wanted: int, least: int, again: Callable[[int], None]) -> "Waiter":
        """Call `again` with bytes as from `grant`, when available. Waiters are served in order."""
        waiter = Waiter(self, wanted, least, again)
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            self._go_on()
            if self._waiting:
                for look in self.pressed:
                    look()
        return waiter

    async def acquire(self, wanted: int, least: int = _LEAST_SHARE) -> int:
        """As `grant`, but wait. Returns 0 at once for 0."""
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
        """Wait for this many bytes, and hold them within the context."""
        granted = await self.acquire(size, size)
        try:
            yield
        finally:
            self.release(granted)

    def read_ahead(self, wanted: int, drop: Callable[[], None]) -> "ReadAheadBudget | None":
        """Reserve bytes for reading ahead. None: too little is free.

        Args:
            wanted: bytes; fewer if less than a quarter of the budget would stay free.
            drop: drops the data when a response needs the memory, or no reader comes.
        """
        size = min(wanted, self.limit - (self.limit >> 2) - self.used)
        if self._waiting or size < min(wanted, _LEAST_AHEAD):
            return None
        ahead = ReadAheadBudget(self, size, drop)
        self._ahead[ahead] = None
        self.used += size
        return ahead

    def _drop_ahead(self, wanted: int) -> None:
        """Drop read-ahead data, oldest first, until there is room."""
        for ahead in tuple(self._ahead):
            if self.used + wanted <= self.limit:
                return
            ahead.drop()

    def resize(self, ahead: "ReadAheadBudget", size: int) -> None:
        """Change the size of read-ahead data, if it still counts."""
        if ahead in self._ahead:
            self.used += size - ahead.size
            ahead.size = size

    def forget(self, ahead: "ReadAheadBudget") -> bool:
        """Release read-ahead data. Return False if it was released before."""
        if ahead not in self._ahead:
            return False
        del self._ahead[ahead]
        self.release(ahead.size)
        return True


class Waiter:
    """A response that waits for budget."""

    __slots__ = ("_budget", "again", "least", "wanted")

    def __init__(self, budget: ReadBudget, wanted: int, least: int, again: Callable[[int], None]) -> None:
        self._budget = budget
        self.wanted = wanted
        self.least = least
        self.again: Callable[[int], None] | None = again

    def cancel(self) -> None:
        """Stop waiting. Bytes just granted are released. The next waiter may need less."""
        self.again = None
        self._budget.go_on_without(self)

    def run(self, granted: int) -> None:
        """Pass the granted bytes on, or release them if canceled."""
        again, self.again = self.again, None
        if again is None:
            self._budget.release(granted)
        else:
            again(granted)


class ReadAheadBudget:
    """Reservation of read-ahead data."""

    KEEP_S = 5.0
    """Seconds for which the data is kept without its reader."""

    __slots__ = ("_budget", "_came", "_drop", "_dropped", "_timer", "size")

    def __init__(self, budget: ReadBudget, size: int, drop: Callable[[], None]) -> None:
        self._budget = budget
        self._drop = drop
        self._came = False
        self._dropped = False
        self.size = size
        """Reserved bytes, then those of the data."""
        self._timer = asyncio.get_running_loop().call_later(self.KEEP_S, self.drop)

    def came(self, size: int) -> None:
        """Set the size of the data. 0: the read failed."""
        self._came = True
        self._budget.resize(self, size)
        if self._dropped:
            self._budget.forget(self)

    def drop(self) -> None:
        """Drop the data, or hand it to its reader. Data in flight from Redis counts until it arrives."""
        self._timer.cancel()
        if self._dropped:
            return
        self._dropped = True
        self._drop()
        if self._came:
            self._budget.forget(self)


def bytes_of(reading: "asyncio.Future[list[StoredBatch]]") -> int:
    """Return the bytes of a read. 0: it failed."""
    if reading.cancelled() or reading.exception() is not None:
        return 0
    return sum(len(found.batch) for found in reading.result())
