"""Decompress large batches off the event loop, a limited number at a time.

A batch of a few kilobytes may decompress to 128 MiB (`records.compression.LIMIT`) with millions of records. Concurrent
requests must not multiply this time and memory.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.aio.tasks import in_thread
from headrace.records.compression import LIMIT

R = TypeVar("R")

HERE = 256 << 10
"""Maximum decompressed bytes of a batch on the event loop."""
A_TURN = 1 << 20
"""Bytes decompressed or read in one turn of the event loop."""
USUAL = 16 << 20
"""Maximum decompressed bytes of a batch in the first thread."""
MOST = LIMIT
"""Maximum decompressed bytes of a batch in the second thread."""
_THREADS = 2
"""One for each size, because the event loop needs a CPU too."""


class Decompression:
    """At most one batch of up to `USUAL` and one of up to `MOST` bytes run at a time, in threads."""

    def __init__(self) -> None:
        self._here = 0
        self._threads = ThreadPoolExecutor(_THREADS, "headrace-decompress")
        self._usual = asyncio.Lock()
        self._large = asyncio.Lock()

    def count(self, size: int) -> None:
        """Count bytes decompressed or read in this event loop turn."""
        if not self._here:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._here += size

    def _next_turn(self) -> None:
        self._here = 0

    @property
    def turn_is_over(self) -> bool:
        """Whether this turn of the event loop has no time left."""
        return self._here >= A_TURN

    async def turn(self) -> None:
        """Wait for an event loop turn with time left."""
        while self.turn_is_over:
            await asyncio.sleep(0)

    async def usual(self, work: Callable[[], R]) -> R:
        """Run `work` on batches of up to `USUAL` bytes in a thread."""
        async with self._usual:
            return await in_thread(self._threads, work)

    async def large(self, work: Callable[[], R]) -> R:
        """Run `work` on a batch of up to `MOST` bytes in a thread."""
        async with self._large:
            return await in_thread(self._threads, work)

    def close(self) -> None:
        """Stop the threads and drop queued work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
