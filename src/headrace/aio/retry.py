"""Pauses between attempts, and a step that is repeated while it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def pauses(first: float, longest: float | None = None) -> Iterator[float]:
    """Yield pauses without end, doubled from `first` up to `longest`. None: all are equal."""
    following = first
    longest = first if longest is None else longest
    while True:
        yield following
        following = min(2 * following, longest)


class Backoff:
    """Waits that double from one attempt to the next."""

    def __init__(
        self,
        first: float,
        longest: float | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare for the first pause. `sleep` sets the unit; None: `asyncio.sleep`, in seconds."""
        self._first, self._longest = first, longest
        self._sleep = sleep
        self._pauses = pauses(first, longest)

    def reset(self) -> None:
        """Begin with the first pause again."""
        self._pauses = pauses(self._first, self._longest)

    async def pause(self) -> None:
        """Wait before the next attempt."""
        await (self._sleep or asyncio.sleep)(next(self._pauses))


async def retry(
    step: Callable[[], Awaitable[T]],
    on: type[Exception] | tuple[type[Exception], ...],
    backoff: Backoff,
    *,
    unless: tuple[type[Exception], ...] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> T:
    """Return the result of a step, repeating it while it raises one of `on`.

    Args:
        step: must be safe to repeat.
        on: errors that cause a retry.
        backoff: waits between attempts.
        unless: subclasses of `on` that are raised at once.
        is_over: called after each failure. True: the error is raised.
    """
    while True:
        try:
            return await step()
        except on as error:
            if isinstance(error, unless) or is_over():
                raise
        await backoff.pause()
