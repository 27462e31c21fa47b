"""The fencing number: each write includes it, and Redis rejects writes with an older one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.topics.errors import Fenced

_PATIENCE_S = 2.0
"""Seconds that a live member of the cluster may need to learn of a new view."""
T = TypeVar("T")


class Fence:
    """Epoch of a single server, or number of the view that it uses. It only rises."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._risen = asyncio.Event()
        self.given_up = 0
        """Number of group writes without a response. Their connection may still deliver them after the next write."""
        self.hurry: Callable[[], None] | None = None
        """Read the present view immediately. None if no view exists."""

    @property
    def number(self) -> int:
        """Return the number."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        self._number = number
        self._risen.set()

    @property
    def shared(self) -> bool:
        """Return whether other brokers may write with the same number."""
        return self.hurry is not None

    def give_up(self) -> None:
        """Count a write that may have been sent, without a response."""
        self.given_up += 1

    def __index__(self) -> int:
        return self._number

    async def write(self, write: Callable[[int], Awaitable[T]]) -> T:
        """Write with the present number; if Redis rejects it, wait for the next view and retry.

        Args:
            write: raises Fenced without an effect if a higher number exists.

        Raises:
            Fenced: this server is no longer in the view.
        """
        while True:
            number = self._number
            try:
                return await write(number)
            except Fenced:
                if self.hurry is None or not await self._is_above(number):
                    raise

    async def _is_above(self, number: int) -> bool:
        assert self.hurry is not None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while self._number <= number:
                    self._risen.clear()
                    self.hurry()
                    await self._risen.wait()
        except TimeoutError:
            return False
        return True
