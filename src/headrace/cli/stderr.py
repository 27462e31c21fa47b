"""Standard error behind a bounded queue, so that no log line ever holds up or fails whoever writes it.

A full disk under a redirected stderr, or a reader that has stopped reading, costs log lines and nothing else: a thread
writes, and what cannot be written is counted, and told in the log itself once that can be written again.
"""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

MOST_LINES: Final = 4_096
"""Lines that may wait for a reader."""
_LOOK_S: Final = 1.0
"""How often `due` is asked."""
_FLUSH_S: Final = 2.0
_NOT_READ: Final = "stderr is not read"


class _Asked(threading.Event):
    """Set once everything queued before it has been tried."""


class StderrWriter:
    """Writes lines to a file descriptor from a thread of its own."""

    def __init__(
        self,
        descriptor: int,
        lost_line: Callable[[int, str], str],
        due: Callable[[bool], list[str]] = lambda _ending: [],
        most_lines: int = MOST_LINES,
    ) -> None:
        """Start the thread.

        Args:
            descriptor: where the lines go.
            lost_line: makes the line that tells how many lines were lost, and why.
            due: asked once a second, with False, and at the end, with True, for lines whose time has come.
            most_lines: how many lines may wait; those that come while so many wait are lost.
        """
        self.lost = 0
        """Lines lost since the start."""
        self._descriptor = descriptor
        self._lost_line = lost_line
        self._due = due
        self._most_lines = most_lines
        self._queue: SimpleQueue[str | _Asked] = SimpleQueue()
        self._told = 0
        self._reason = ""
        self._torn = False
        self._ending = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def write(self, line: str) -> None:
        """Queue one line, without its newline. Never waits and never raises."""
        # A SimpleQueue takes no lock that a signal handler or a finalizer could find taken.
        if self._queue.qsize() < self._most_lines:
            self._queue.put(line)
        else:
            self.lose(_NOT_READ)

    def lose(self, reason: str) -> None:
        """Count a line that could not be made or written."""
        self.lost += 1
        self._reason = reason

    def flush(self, limit_s: float = _FLUSH_S) -> bool:
        """Wait until everything queued so far was tried; False when that takes longer than `limit_s`."""
        asked = _Asked()
        self._queue.put(asked)
        return asked.wait(limit_s)

    def end(self) -> None:
        """Write what waits and what is due, for two seconds at most: the process ends."""
        self._ending = True
        self.flush()

    def _run(self) -> None:
        while True:
            try:
                item: str | _Asked | None = self._queue.get(timeout=_LOOK_S)
            except Empty:
                item = None
            if isinstance(item, str):
                self._put(item)
                continue
            for line in self._due(self._ending):
                self._put(line)
            self._tell_lost()
            if item is not None:
                item.set()

    def _put(self, line: str) -> None:
        self._tell_lost()
        refused = self._write(line)
        if refused:
            self.lose(refused)

    def _tell_lost(self) -> None:
        lost = self.lost
        if lost > self._told and not self._write(self._lost_line(lost - self._told, self._reason)):
            self._told = lost

    def _write(self, line: str) -> str:
        """Write a whole line; why that was not possible. A line that got through in part is ended before the next."""
        rest = memoryview((("\n" if self._torn else "") + line + "\n").encode("utf-8", "backslashreplace"))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
                self._torn = bool(rest)
        except BlockingIOError:
            return _NOT_READ
        except OSError as error:
            return error.strerror or str(error)
        return ""
