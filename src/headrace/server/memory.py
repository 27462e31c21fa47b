"""What a process that serves alone does with the machine's memory."""

import contextlib
import ctypes
import gc

from headrace.broker.admin.connections import raise_descriptors
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.partition.cache import BESIDE_FILE_BYTES, CacheBudget, default_bytes
from headrace.storage.valkey.embedded import machine_memory

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
