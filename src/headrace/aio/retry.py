"""Trying again: the pauses between attempts, and an asynchronous step that is repeated while it fails."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def pauses(first: float, longest: float | None = None) -> Iterator[float]:
    """Yield pauses without end, each twice as long as the one before, up to a bound; all the same without one."""
    following = first
    longest = first if longest is None else longest
    while True:
        yield following
        following = min(2 * following, longest)


class Backoff:
    """Waits between attempts: what fails often is asked less often."""

    def __init__(
        self,
        first: float,
        longest: float | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare for the first pause.

        Args:
            first: the first pause, in the unit of `sleep`.
            longest: the longest pause; None: as the first.
            sleep: waits for a pause; None: `asyncio.sleep`, in seconds.
        """
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
    """Return what a step returns, repeating it while it raises one of some errors.

    Args:
        step: must do no harm when it is made twice.
        on: errors after which it is made again.
        backoff: waits in between.
        unless: kinds of `on` that are raised all the same.
        is_over: called after each failure; true: its error is raised.
    """
    while True:
        try:
            return await step()
        except on as error:
            if isinstance(error, unless) or is_over():
                raise
        await backoff.pause()
