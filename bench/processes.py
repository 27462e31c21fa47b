"""CPU time and memory of processes, as Linux counts them."""

import contextlib
import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RESET_PEAK = "5"


def cpu_s(pid: int) -> float:
    """User and system time so far, in steps of 10 ms; that of its ended children included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS_PER_S


def age_s(pid: int) -> float:
    """How long ago it was started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float(Path("/proc/uptime").read_text().split()[0]) - int(fields[19]) / _TICKS_PER_S


def tree_cpu_s(root: int, *, without: str) -> float:
    """`cpu_s` of a process and all its living descendants, but for those with `without` in their name."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdigit() else 0
        # Processes come and go while this looks.
        with contextlib.suppress(OSError, IndexError):
            if pid and root in _ancestry(pid) and without not in (entry / "comm").read_text():
                total += cpu_s(pid)
    return total


def spark_memory_mb(driver: int) -> dict[str, float]:
    """`memory_mb` of what a driver in Python consists of: itself, its JVM, and the Python workers of that."""
    total = {"driver": memory_mb(driver), "JVM": 0.0, "Python workers": 0.0}
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdigit() else 0
        with contextlib.suppress(OSError, IndexError):
            line = _ancestry(pid) if pid else []
            if driver in line and "java" in (
                names := [Path(f"/proc/{each}/comm").read_text().strip() for each in line]
            ):
                total["JVM" if names[0] == "java" else "Python workers"] += memory_mb(pid)
    return total


def _ancestry(pid: int) -> list[int]:
    """The process, its parent, and so on."""
    found = []
    while pid:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def reset_peak(pid: int) -> None:
    """Let `peak_mb` count from now on; where the kernel does not allow it, it counts from the start."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def peak_mb(pid: int) -> float:
    """The most memory it ever had resident, in MB of 10^6 bytes; pages that it shares count whole."""
    return _kib(Path(f"/proc/{pid}/status"), "VmHWM:") * 1024 / 1e6


def resident_mb(pid: int) -> float:
    """The memory it has resident now, to compare with `peak_mb`."""
    return _kib(Path(f"/proc/{pid}/status"), "VmRSS:") * 1024 / 1e6


def memory_mb(pid: int) -> float:
    """The memory it has now, in MB; pages that processes share are divided among them (PSS)."""
    return _kib(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") * 1024 / 1e6


def _kib(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise LookupError(f"{file} has no {name}")
