"""Keeps one process with Spark in it alive: starts it, starts another when it was killed, and asks it to end."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from headrace.cli.archive import messages
from headrace.cli.archive.messages import Batch, Ended, Failed, Note, SparkReady, Told, Wanted

_CHILD: Final = "headrace.cli.archive.child"
_LONGEST_PAUSE_S: Final = 30.0
_TRIES: Final = 10
"""So many processes in a row that ended without a batch are enough."""


class ArchiveFailed(Exception):
    """The archive has ended, and another process would end the same way. One line for a person."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        """`missing`: a topic that was named is not there."""
        super().__init__(text)
        self.missing = missing


class Supervisor:
    """Runs the archive. Of one process at a time: two would not harm the tables, they would only waste work."""

    def __init__(self, wanted: Wanted, tell: Callable[[Told], None]) -> None:
        """`tell` is called with everything that the archive says, and with notes of ours, on the caller's thread."""
        self._wanted = wanted
        self._tell = tell
        self._asked = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._archived = False
        self._status = 0

    def run(self) -> None:
        """Archive until it is done or `stop` is called.

        Raises:
            ArchiveFailed: it cannot go on.
        """
        failures = 0
        while not self._asked.is_set():
            self._archived = False
            last = self._run_child()
            if isinstance(last, Ended) or self._asked.is_set():
                return
            if isinstance(last, Failed) and not last.passing:
                raise ArchiveFailed(last.text, missing=last.missing)
            failures = 1 if self._archived else failures + 1
            why = last.text if isinstance(last, Failed) else _ending(self._status)
            if failures >= _TRIES:
                raise ArchiveFailed(f"{why}; that was {failures} times in a row")
            pause = min(_LONGEST_PAUSE_S, 2.0 ** (failures - 1))
            self._tell(Note(f"{why}; starting anew in {pause:.0f} s"))
            self._asked.wait(pause)

    def stop(self) -> None:
        """Ask it to end with the batch that is under way; asked again, end it at once. From any thread or signal.

        While Spark starts there is no batch to wait for: it is ended at once, too.
        """
        child = self._child
        if self._asked.is_set() or not self._ready:
            self._asked.set()
            if child is not None:
                _kill(child)
            return
        self._asked.set()
        if child is not None and child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()

    @property
    def asked(self) -> bool:
        """Whether somebody asked it to stop."""
        return self._asked.is_set()

    def _run_child(self) -> Told | None:
        """One process from its start to its end; the last thing that it said of its end, None when it said nothing."""
        ended: Told | None = None
        command = [sys.executable, "-m", _CHILD]
        with (
            # Where it is killed, nothing of it stays behind.
            tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as folder,
            # A session of its own: Ctrl-C reaches this process alone, and all of it can be ended together.
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={"SPARK_LOCAL_DIRS": folder} | os.environ | {"TMPDIR": folder},
            ) as child,
        ):
            self._child, self._ready = child, False
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                with contextlib.suppress(OSError, ValueError):
                    child.stdin.write(messages.line(self._wanted))
                    child.stdin.flush()
                if self._asked.is_set():
                    _kill(child)
                for text in child.stdout:
                    told = _told(text)
                    if isinstance(told, Ended | Failed):
                        ended = told
                    elif told is not None:
                        self._ready = self._ready or isinstance(told, SparkReady)
                        self._archived = self._archived or (
                            isinstance(told, Batch) and told.progress.rows + told.progress.dead > 0
                        )
                        self._tell(told)
                self._status = child.wait()
            finally:
                self._child = None
                with contextlib.suppress(OSError, ValueError):
                    child.stdin.close()
                # What it has left running, such as its JVM, would only be in the way.
                _kill(child)
        return ended


@contextlib.contextmanager
def stopping_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """SIGTERM and Ctrl-C ask it to stop."""

    def ask(_signal: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(text: bytes) -> Told | None:
    try:
        return messages.told(text)
    except msgspec.MsgspecError:  # half a line, of a process that was killed
        return None


def _ending(status: int) -> str:
    if status < 0:
        return f"the archive's process was killed by {signal.Signals(-status).name}"
    return f"the archive's process ended with status {status}"


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """All that the process has started, at once: what is left of Spark would say at length that the rest is gone."""
    for end, number in [(os.kill, worker) for worker in _workers(child.pid)] + [(os.killpg, child.pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(number, signal.SIGKILL)


def _workers(leader: int) -> list[int]:
    """Spark's Python workers, of the session but of process groups of their own. Found where there is /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        number = int(entry.name)
        with contextlib.suppress(OSError):  # gone in the meantime
            if os.getsid(number) == leader and os.getpgid(number) != leader:
                found.append(number)
    return found
