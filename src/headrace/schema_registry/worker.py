"""Parse and compare schemas in threads, with bounds, so that hostile schemas cannot stall the event loop."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from headrace.schemas.errors import RegistryError, Steps

T = TypeVar("T")

_THREADS: Final = 2
"""Schemas that are parsed at the same time; each takes a core for up to a few seconds."""
MOST_WAITING: Final = 100
"""Requests that wait for a thread."""
_PAUSE_S: Final = 0.000_1
"""Pause of a thread every few hundred steps, in which the event loop gets Python's lock."""


class Worker:
    """The threads of one registry."""

    def __init__(self) -> None:
        """Start no thread."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="schemas")
        self._waiting = 0

    def steps(self) -> Steps:
        """Return the budget of one request."""
        return Steps(rest=_rest)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of a function that runs in a thread. Raises RegistryError if too many wait, and as it."""
        if self._waiting >= MOST_WAITING:
            raise RegistryError(503, 50302, "Too many schemas wait to be parsed: try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, _bounded, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the threads. Work that is queued is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _bounded(work: Callable[[], T]) -> T:
    try:
        return work()
    except RecursionError:
        raise RegistryError(422, 42201, "The schema is too complex: its types are nested too deeply") from None


def _rest() -> None:
    time.sleep(_PAUSE_S)
