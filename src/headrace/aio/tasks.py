"""Tasks, calls in slices, work in threads and callbacks: how they end, and what ends with them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import Executor
from types import coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")
R = TypeVar("R")
_AGAIN_S = 0.1
_log = structlog.get_logger("headrace.aio")


async def end(task: "asyncio.Task[Any]") -> None:
    """Cancel a background task that speaks to Redis, and wait until it has ended, however it ends.

    It may take more than one cancellation: redis-py sends through `asyncio.wait_for`, which in Python 3.11 swallows one
    that comes as the sending is done.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)


def close_with(task: "asyncio.Task[Any]", awaited: Coroutine[Any, Any, Any]) -> None:
    """Close what a task is to await when the task ends: one that is cancelled before its first step awaits nothing.

    Python would warn of a coroutine that was never awaited, whenever it finds it.
    """
    task.add_done_callback(lambda _: awaited.close())


def unheard(task: "asyncio.Future[Any]") -> None:
    """Mark the exception of a task as retrieved. Callers that await the task still receive it.

    Otherwise, Python logs an exception that no caller retrieved when it collects the task.
    """
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def to_the_end(change: Coroutine[Any, Any, R], awaited: Coroutine[Any, Any, Any] | None = None) -> R:
    """Finish a change even if its caller is cancelled.

    A client that disconnects cancels its requests. Half a change would leave a topic that is stored but unknown to this
    server, or the reverse.

    Args:
        change: goes on when the caller is cancelled.
        awaited: what it awaits, to be closed if it ends before its first step.
    """
    making = asyncio.ensure_future(change)
    if awaited is not None:
        close_with(making, awaited)
    unheard(making)
    return await asyncio.shield(making)


async def in_slices(
    items: Sequence[T], ask: Callable[[T], Awaitable[R]], at_once: int
) -> AsyncIterator[list[tuple[T, R]]]:
    """Yield items with their results, slice by slice and in order. Raises the first error that `ask` raises.

    Each call costs a task of some kilobytes and about ten microseconds of the event loop. A request of a few bytes may
    name every partition.

    Args:
        items: may have changed by the time that later slices are read from it.
        ask: called for every item of a slice before any of them is waited for.
        at_once: items of a slice.
    """
    for first in range(0, len(items), at_once):
        some = items[first : first + at_once]
        yield list(zip(some, await asyncio.gather(*map(ask, some)), strict=True))


async def in_thread(threads: Executor, work: Callable[[], R]) -> R:
    """Run `work` in a thread, and raise what it raises.

    A thread cannot be stopped, so a cancelled caller waits until the work is done, however often it is cancelled.
    """
    running = asyncio.get_running_loop().run_in_executor(threads, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise


@coroutine
def counted(
    later: Coroutine[Any, Any, Any], resume: Callable[[], None], pause: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Run as `later`, calling `resume` before each of its steps and `pause` after it: what it waits is not between."""
    error: BaseException | None = None
    value: Any = None
    while True:
        resume()
        try:
            awaited = later.send(value) if error is None else later.throw(error)
        except StopIteration as end:
            return end.value
        finally:
            pause()
        value = error = None
        try:
            value = yield awaited
        except BaseException as thrown:
            error = thrown


def tell(done: Callable[[R], None], result: R, to: str) -> None:
    """Call one of several callbacks. Its exception is logged, so that the others are called as well.

    `to`: what the result answers, for the log.
    """
    try:
        done(result)
    except Exception:
        log_unhandled(to)


def log_unhandled(to: str) -> None:
    """Log the current exception as `tell` does, for loops over many batches that cannot afford its call for each."""
    _log.exception("response handling failed", to=to)
