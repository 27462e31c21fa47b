"""What the operating system tells of the server's process and of its disk."""

import os
import resource
import time
from pathlib import Path

from headrace.metrics.gauges import ProcessFacts

_PROC = Path("/proc/self")


def process_facts(data: Path | None) -> ProcessFacts:
    """Look; blocks for a moment, on the disk above all.

    Args:
        data: the data directory; None: the data is not on this machine.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    free = size = None
    if data is not None:
        try:
            disk = os.statvfs(data)
            free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        except OSError:
            pass
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessFacts(
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        started_seconds=_started(),
        resident_bytes=_resident(),
        open_fds=_open_fds(),
        max_fds=None if limit == resource.RLIM_INFINITY else limit,
        disk_free_bytes=free,
        disk_size_bytes=size,
    )


def _open_fds() -> int | None:
    try:
        return sum(1 for _ in (_PROC / "fd").iterdir()) - 1  # the one that lists
    except OSError:
        return None


def _resident() -> int | None:
    try:
        return int((_PROC / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _started() -> float | None:
    """Seconds since 1970. The kernel counts a process' start in ticks since the machine's (proc(5), field 22)."""
    try:
        after_name = (_PROC / "stat").read_text().rpartition(")")[2].split()
        since_boot = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
        return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 2)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
