"""Batches are decompressed off the event loop when that may take long, and only so many at a time.

A batch of some kilobytes may decompress to 128 MiB (`records.compression.LIMIT`), and then has millions of records:
neither the time nor the memory may be that of everybody who asks for one at the same moment.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.aio.tasks import in_thread
from headrace.records.compression import LIMIT

R = TypeVar("R")

HERE = 256 << 10
"""Bytes that a batch may decompress to on the event loop."""
A_TURN = 1 << 20
"""Bytes that are decompressed or read there in one turn."""
USUAL = 16 << 20
"""Bytes that a batch may decompress to beside others."""
MOST = LIMIT
"""Bytes that one batch at a time may decompress to."""
_THREADS = 2
"""One for each of the two sizes: the event loop needs a processor too."""


class Decompression:
    """Where batches are decompressed and read for answers: large ones in threads.

    One of up to `USUAL` and one of up to `MOST` bytes at a time.
    """

    def __init__(self) -> None:
        self._here = 0
        self._threads = ThreadPoolExecutor(_THREADS, "headrace-decompress")
        self._usual = asyncio.Lock()
        self._large = asyncio.Lock()

    def count(self, size: int) -> None:
        """Bytes that were decompressed or read on the event loop, in its present turn."""
        if not self._here:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._here += size

    def _next_turn(self) -> None:
        self._here = 0

    async def turn(self) -> None:
        """Wait for a turn of the event loop in which there is time for more, whoever else reads."""
        while self._here >= A_TURN:
            await asyncio.sleep(0)

    async def usual(self, work: Callable[[], R]) -> R:
        """Run in a thread what decompresses batches of up to `USUAL` bytes, one after another."""
        async with self._usual:
            return await in_thread(self._threads, work)

    async def large(self, work: Callable[[], R]) -> R:
        """Run in a thread what decompresses one batch of up to `MOST` bytes."""
        async with self._large:
            return await in_thread(self._threads, work)

    def close(self) -> None:
        """End the threads; what is queued is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
