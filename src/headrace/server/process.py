"""The process of a server: event loop, memory and shutdown."""

import asyncio
import contextlib
import ctypes
import gc
import signal
from collections.abc import Callable, Iterator
from time import perf_counter

from headrace.broker.admin.connections import raise_descriptors
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import FILE_READER_CACHE_BYTES, CacheBudget, default_bytes
from headrace.metrics.counters import TICKS, Durations
from headrace.storage.valkey.server import machine_memory


class Stop:
    """A request to end the server."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.reason = ""
        self.status = 0

    def ask(self, reason: str, status: int = 0) -> None:
        """End the server. Later calls have no effect."""
        if not self._asked.is_set():
            self.reason, self.status = reason, status
            self._asked.set()

    async def wait(self) -> None:
        """Wait for a stop request."""
        await self._asked.wait()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Stop on SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.ask, number.name)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


_EVERY_S = 0.1


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if installed, else None for asyncio's."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return uvloop.new_event_loop


class DelayWatch:
    """Measures the delay of timers on the running loop, ten times per second."""

    def __init__(self, delays: Durations) -> None:
        self._delays = delays
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._arrange()

    def _arrange(self) -> None:
        self._due = perf_counter() + _EVERY_S
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def _look(self) -> None:
        self._delays.add(int(max(0.0, perf_counter() - self._due) * TICKS))
        self._arrange()

    def stop(self) -> None:
        """Stop measuring."""
        self._timer.cancel()


_MAX_INT = 2**31 - 1
_COLLECTED = 20_000, 3, 1_250
"""Thresholds of the garbage collector's generations.

100,000 young objects stall the process for about 10 ms. A full collection runs once per 100 million allocations.
"""


def prepared(settings: BrokerSettings, *, guest: bool) -> CacheBudget:
    """Return the budget of the cached tails; tune the process unless it is a guest."""
    cache = CacheBudget(settings.headrace_cache_bytes)
    if not guest:
        if settings.headrace_cache_bytes < 0:
            cache.limit = default_bytes(machine_memory())
        keep_memory(cache.limit)
        raise_descriptors()
        # Keeps imported objects out of `settle_memory`'s collection.
        gc.freeze()
    return cache


def limit_cache_with_file_reader(cache: CacheBudget, settings: BrokerSettings) -> None:
    """Use a small cache where reads come from the page cache, unless its size is configured."""
    if settings.headrace_cache_bytes < 0:
        cache.limit = FILE_READER_CACHE_BYTES


def keep_memory(cached: int) -> None:
    """Let glibc reuse large buffers instead of returning each to the kernel.

    By default each batch of a megabyte is mapped, faulted in and unmapped, which costs more than all other work on it.
    `cached` is the size of the cached tails in bytes, which later topics reuse after a deletion.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        mallopt(m_mmap_threshold, 32 << 20)
        mallopt(m_trim_threshold, min(cached + (256 << 20), _MAX_INT))
        mallopt(m_top_pad, 16 << 20)


def settle_memory(cached: int) -> None:
    """Exclude objects of the start from garbage collection, which would stall the server for milliseconds.

    `cached` as for `keep_memory`.
    """
    keep_memory(cached)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED)
