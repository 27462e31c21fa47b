"""The processes of a session: what a command has started, however deep, and however it has died."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def of_session(leader: int) -> Iterator[tuple[int, str]]:
    """The living processes of a session, with their command lines."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone in the meantime
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if session == leader:
                yield int(entry.name), (entry / "cmdline").read_text().replace("\0", " ")


def kill_session(leader: int) -> None:
    """SIGKILL to every process of the session: Python, the JVM, and Spark's workers in their own groups."""
    for number, _ in of_session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
