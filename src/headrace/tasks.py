"""Ending background tasks that speak to Redis."""

import asyncio

_AGAIN_S = 0.1


async def end(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait until it has ended, however it ends.

    It may take more than one cancellation: redis-py sends through `asyncio.wait_for`, which in Python 3.11 swallows one
    that comes as the sending is done.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)
