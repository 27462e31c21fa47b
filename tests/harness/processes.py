"""The processes of a session: what a command has started, however deep, and however it has died."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_DEAD = ("Z", "X")
_POLL_S = 0.005


def of_session(leader: int) -> Iterator[tuple[int, str]]:
    """The living processes of a session, with their command lines."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone in the meantime
            state, _, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state not in _DEAD:
                yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")


def kill_session(leader: int) -> int:
    """SIGKILL to every process of the session: Python, the JVM, and Spark's workers in their own groups.

    Returns when none of them lives, those included that began while others were killed; how many there were.
    """
    killed: set[int] = set()
    while found := [number for number, _ in of_session(leader)]:
        for number in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        killed.update(found)
        time.sleep(_POLL_S)
    return len(killed)
