"""Waiting for what must come, on the event loop."""

import asyncio
from collections.abc import Callable


async def until(happened: Callable[[], object]) -> None:
    """Let the event loop run until something has happened; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.001)
