"""Waiting for what must come, on the event loop and without one."""

import asyncio
import time
from collections.abc import Callable

_PATIENCE_S = 150.0  # a Sentinel whose clock jumps, say, decides nothing for 30 s


async def until(happened: Callable[[], object]) -> None:
    """Let the event loop run until something has happened; TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while not happened():
            await asyncio.sleep(0.001)


def wait_for(happened: Callable[[], bool], what: str) -> None:
    """Look until something has happened; fails after two and a half minutes."""
    deadline = time.monotonic() + _PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)
