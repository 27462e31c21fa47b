"""The number under which a server writes: all that it sends says it, and Redis refuses older ones."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.topics.errors import Fenced

_PATIENCE_S = 2.0
"""How long a server that is in the view may take to hear of a new one."""
T = TypeVar("T")


class Fence:
    """The epoch of a server that is alone, or the number of the view that it goes by. It only rises."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._risen = asyncio.Event()
        self.given_up = 0
        """How many writes of groups may have been sent and had no answer: their connection may bring them behind what
        is written next."""
        self.hurry: Callable[[], None] | None = None
        """Has the present view looked for at once; None: there is no view."""

    @property
    def number(self) -> int:
        """The number itself."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        self._number = number
        self._risen.set()

    @property
    def shared(self) -> bool:
        """Whether there is a view: others may write under the same number."""
        return self.hurry is not None

    def give_up(self) -> None:
        """A write that may have been sent had no answer."""
        self.given_up += 1

    def __index__(self) -> int:
        return self._number

    async def write(self, write: Callable[[int], Awaitable[T]]) -> T:
        """Write something that every server may write, as soon as this one goes by the present view.

        Args:
            write: does it under a number. Raises Fenced, having written nothing, where there is a higher one.

        Raises:
            Fenced: this server is in no view any more; what `write` raises else.
        """
        while True:
            number = self._number
            try:
                return await write(number)
            except Fenced:
                if self.hurry is None or not await self._is_above(number):
                    raise

    async def _is_above(self, number: int) -> bool:
        """Wait a while for a higher number; whether there is one."""
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
