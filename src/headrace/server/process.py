"""The process of a server: its event loop, its memory, and how it ends."""

import asyncio
import contextlib
import ctypes
import gc
import signal
from collections.abc import Callable, Iterator
from time import perf_counter

from headrace.broker.admin.connections import raise_descriptors
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import BESIDE_FILE_BYTES, CacheBudget, default_bytes
from headrace.metrics.counters import TICKS, Durations
from headrace.storage.valkey.server import machine_memory


class Stop:
    """Why and how the server ends."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.reason = ""
        self.status = 0

    def ask(self, reason: str, status: int = 0) -> None:
        """End the server; the first reason counts."""
        if not self._asked.is_set():
            self.reason, self.status = reason, status
            self._asked.set()

    async def wait(self) -> None:
        """Until somebody asks."""
        await self._asked.wait()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Ask when SIGTERM or SIGINT comes."""
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
    """uvloop's, where it is installed; None: asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return uvloop.new_event_loop


class DelayWatch:
    """Measures how late the running loop comes to a timer, ten times a second."""

    def __init__(self, delays: Durations) -> None:
        """Start at once; `delays` is increased until `stop`."""
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
"""How many objects are young, how often these are walked until those left are, and that until all are: 100 000 together
hold everybody up for some 10 ms, and all are walked once in 100 million."""


def prepared(settings: BrokerSettings, *, guest: bool) -> CacheBudget:
    """The budget of the cached tails, and a process that is made for serving, unless it is somebody else's."""
    cache = CacheBudget(settings.headrace_cache_bytes)
    if not guest:
        if settings.headrace_cache_bytes < 0:
            cache.limit = default_bytes(machine_memory())
        keep_memory(cache.limit)
        raise_descriptors()
        # What was imported stays: `settle_memory` need not walk it, which took a twelfth of a start.
        gc.freeze()
    return cache


def shrink_beside_file(cache: CacheBudget, settings: BrokerSettings) -> None:
    """Where the page cache has what the server drops, keep little, unless somebody says how much."""
    if settings.headrace_cache_bytes < 0:
        cache.limit = BESIDE_FILE_BYTES


def keep_memory(cached: int) -> None:
    """Let glibc keep large buffers for the next ones instead of giving each back to the kernel.

    Record batches are around a megabyte: by default each would be mapped, touched for the first time and unmapped,
    which costs more than everything else that is done with it. Elsewhere than on glibc this does nothing.

    Args:
        cached: bytes that the cached tails may have: a topic that is deleted leaves them to the next one.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        mallopt(m_mmap_threshold, 32 << 20)
        mallopt(m_trim_threshold, min(cached + (256 << 20), _MAX_INT))
        mallopt(m_top_pad, 16 << 20)


def settle_memory(cached: int) -> None:
    """What start-up made lives on: keep the collector from walking it again and again, a stall of milliseconds.

    Args:
        cached: as for `keep_memory`; by now the cache may be the small one beside Valkey's file.
    """
    keep_memory(cached)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED)
