"""What a figure was measured on: without it, it says nothing."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from headrace.cli.version import valkey_version
from headrace.records import accelerator

_GIB = 1 << 30
_BUSY = 0.25


def describe(**settings: object) -> str:
    """Machine, versions, and the settings that matter to a bench: some lines for the top of its table."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    lines = [
        f"machine   {os.cpu_count()} cores of {_cpu_model()}, {memory:.0f} GiB, {system}",
        (
            f"versions  headrace {version('headrace')} ({accelerator.description}), "
            f"{platform.python_implementation()} {platform.python_version()}, uvloop {version('uvloop')}, "
            f"Valkey {valkey_version()}"
        ),
    ]
    if settings:
        lines.append("settings  " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items()))
    load = os.getloadavg()[0]
    if load > _BUSY * (os.cpu_count() or 1):
        lines.append(f"careful   load average {load:.1f} before the start: other work shared the machine")
    return "\n".join(lines)


def client_library() -> str:
    """The load generator's client and the library under it."""
    import confluent_kafka  # noqa: PLC0415  # takes a while, and only some benches need it

    return f"librdkafka {confluent_kafka.libversion()[0]} (confluent-kafka {version('confluent-kafka')})"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "an unnamed CPU"
