"""Tasks, calls in slices, work in threads, and callbacks."""

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
    """Cancel a background task that uses Redis, and wait until it has ended.

    One cancellation may not suffice: redis-py sends through `asyncio.wait_for`, which in Python 3.11 swallows one that
    arrives as the write completes.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)


def close_with(task: "asyncio.Task[Any]", awaited: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine when the task that is to await it ends.

    A task that is cancelled before its first step awaits nothing, and Python would warn of it.
    """
    task.add_done_callback(lambda _: awaited.close())


def unheard(task: "asyncio.Future[Any]") -> None:
    """Mark the exception of a task as retrieved, so that Python does not log it.

    Callers that await the task still get it.
    """
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def to_the_end(change: Coroutine[Any, Any, R], awaited: Coroutine[Any, Any, Any] | None = None) -> R:
    """Finish a change even if its caller is cancelled, as when a client disconnects.

    `awaited` is closed if `change` ends before its first step.
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

    Slices bound the cost: each call takes a task of some kilobytes and about 10 µs of the event loop, and a request of
    a few bytes may name every partition. Later slices read `items` as it is by then.
    """
    for first in range(0, len(items), at_once):
        some = items[first : first + at_once]
        yield list(zip(some, await asyncio.gather(*map(ask, some)), strict=True))


async def in_thread(threads: Executor, work: Callable[[], R]) -> R:
    """Run `work` in a thread, and raise its errors.

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
    """Run `later`, calling `resume` before each of its steps and `pause` after it.

    The time it waits is not between them.
    """
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
    """Call one of several callbacks. Its exception is logged with `to`, so that the others are called as well."""
    try:
        done(result)
    except Exception:
        log_unhandled(to)


def log_unhandled(to: str) -> None:
    """Log the current exception as `tell` does, for loops that cannot afford a call per batch."""
    _log.exception("response handling failed", to=to)
