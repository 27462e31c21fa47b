import asyncio
import contextlib

from headrace.tasks import end


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
