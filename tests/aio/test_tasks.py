import asyncio
import contextlib
import inspect
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.aio.tasks import close_with, counted, end, in_thread


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_a_task_that_ended_already_is_no_trouble() -> None:
    task = asyncio.create_task(asyncio.sleep(0))
    await task
    await end(task)


async def test_what_a_task_was_to_await_is_closed_when_it_never_began() -> None:
    awaited = asyncio.sleep(0)

    async def begin() -> None:
        await awaited

    task = asyncio.create_task(begin())
    close_with(task, awaited)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(awaited) == inspect.CORO_CLOSED


async def test_work_in_a_thread_keeps_its_place_however_often_it_is_cancelled() -> None:
    """As the tasks of a client that has left are, until they have ended."""
    began, over = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert over.wait(60)

    with ThreadPoolExecutor(1) as threads:
        task = asyncio.create_task(in_thread(threads, work))
        while not began.is_set():
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await asyncio.wait([task], timeout=0.01)
        kept = not task.done()
        over.set()
        await asyncio.wait([task])
    assert kept
    assert task.cancelled()


async def test_the_steps_of_a_coroutine_are_counted_without_what_it_waits() -> None:
    told: list[str] = []
    goes_on = asyncio.Event()

    async def work() -> str:
        told.append("one")
        await goes_on.wait()
        told.append("two")
        return "done"

    task = asyncio.create_task(_awaited(work(), told))
    await asyncio.sleep(0)
    assert told == ["resumed", "one", "paused"]
    goes_on.set()
    assert await task == "done"
    assert told == ["resumed", "one", "paused", "resumed", "two", "paused"]


async def test_a_coroutine_whose_steps_are_counted_can_be_cancelled_and_fail() -> None:
    told: list[str] = []

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise LookupError("ended") from None

    task = asyncio.create_task(_awaited(fail(), told))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert isinstance(task.exception(), LookupError)
    assert told == ["resumed", "paused"] * 2


async def _awaited(later: Coroutine[Any, Any, Any], told: list[str]) -> Any:
    return await counted(later, lambda: told.append("resumed"), lambda: told.append("paused"))
