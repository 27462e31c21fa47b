"""Keep one Spark process alive, and show its reports on standard error and in the web console."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headrace.cli.archive import messages
from headrace.cli.archive.messages import Batch, Ended, Failed, Note, SparkReady, Stand, Told, Wanted
from headrace.lakehouse.status.counters import Figures, Progress
from headrace.lakehouse.status.document import Teller
from headrace.lakehouse.status.document import Told as Archived
from headrace.metrics.runs import State
from headrace.text import times
from headrace.text.escaping import shown

_CHILD: Final = "headrace.cli.archive.child"
_LONGEST_PAUSE_S: Final = 30.0
_TRIES: Final = 10
"""Maximum consecutive processes without a batch."""


class ArchiveFailed(Exception):
    """The archive has ended, and a new process would end the same way. The message is one line."""

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class Supervisor:
    """Runs the archive, in one process at a time. Two would be safe but waste work."""

    def __init__(self, wanted: Wanted, report: Callable[[Told], None]) -> None:
        """Prepare. `report` gets each report and note, on the caller's thread."""
        self._wanted = wanted
        self._report = report
        self._asked = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._archived = False
        self._status = 0

    def run(self) -> None:
        """Archive until it is complete or `stop` is called. Raise ArchiveFailed."""
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
            self._report(Note(f"{why}; restarting in {pause:.0f} s", restarting=True))
            self._asked.wait(pause)

    def stop(self) -> None:
        """Request the end after the current batch; a second call, or one while Spark starts, ends it at once.

        May be called from any thread or signal.
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
        """Return whether a stop was requested."""
        return self._asked.is_set()

    def _run_child(self) -> Told | None:
        ended: Told | None = None
        command = [sys.executable, "-m", _CHILD]
        with (
            # For files that a killed process leaves.
            tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as folder,
            # Its own session: Ctrl-C reaches only this process, and the session can be killed.
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
                        self._report(told)
                self._status = child.wait()
            finally:
                self._child = None
                with contextlib.suppress(OSError, ValueError):
                    child.stdin.close()
                # Remaining processes, such as its JVM, would interfere.
                _kill(child)
        return ended


@contextlib.contextmanager
def stopping_by_signals(supervisor: Supervisor) -> Iterator[None]:
    """Stop it on SIGTERM and Ctrl-C."""

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
    except msgspec.MsgspecError:  # half a line of a killed process
        return None


def _ending(status: int) -> str:
    if status < 0:
        return f"the archive's process was killed by {signal.Signals(-status).name}"
    return f"the archive's process ended with status {status}"


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill all children at once, before the rest of Spark logs their loss."""
    for end, number in [(os.kill, worker) for worker in _workers(child.pid)] + [(os.killpg, child.pid)]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(number, signal.SIGKILL)


def _workers(leader: int) -> list[int]:
    """Return Spark's workers, in other process groups of the session. Needs /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        number = int(entry.name)
        with contextlib.suppress(OSError):
            if os.getsid(number) == leader and os.getpgid(number) != leader:
                found.append(number)
    return found


_QUIET_S: Final = 60.0
"""Seconds between log lines, in a file, of an archive without new records."""


class Show(AbstractContextManager["Show"]):
    """Shows messages."""

    def __init__(self, figures: Figures, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare. `figures` is updated before each message; `clock` returns seconds since 1970."""
        self._figures = figures
        self._clock = clock
        self._began = self._said = clock()
        self._ready = False
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._spinner = Spinner("dots", Text())
        self._live = Live(
            self._spinner, console=self._console, refresh_per_second=8, transient=True, get_renderable=self._now
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            # The first line names the reason for the wait.
            self._live.start(refresh=True)
        else:
            self._say("starting Spark")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, message: Told) -> None:
        """Show a message."""
        if isinstance(message, SparkReady):
            self._ready = True
            self._say(f"Spark {message.spark} on Java {message.java} is up ({self._clock() - self._began:.1f} s)")
        elif isinstance(message, Note):
            self._say(message.text)
            if message.restarting:
                self._ready, self._began = False, self._clock()
        elif isinstance(message, Batch):
            for line in message.progress.unreadable:
                self._say(line)
            if not self._console.is_terminal and (message.progress.batch_rows or message.progress.batch_dead):
                self._say(_batch(message.progress, self._figures))
        elif isinstance(message, Stand) and not self._console.is_terminal and self._clock() - self._said >= _QUIET_S:
            self._say(self._status())

    def _say(self, text: str) -> None:
        self._said = self._clock()
        text = f"{times.clock()} {shown(text)}"
        if self._console.is_terminal:
            self._console.print(text, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def _now(self) -> Spinner:
        if self._ready:
            self._spinner.update(text=Text(self._status(), no_wrap=True, overflow="ellipsis"))
        else:
            self._spinner.update(text=Text(f"starting Spark, {self._clock() - self._began:.0f} s"))
        return self._spinner

    def _status(self) -> str:
        topics = self._figures.topics()
        lags = [topic.lag for topic in topics.values()]
        fresh = [topic.fresh for topic in topics.values() if topic.fresh is not None]
        parts = [
            f"archived {sum(topic.records for topic in topics.values()):,}",
            f"{self._figures.rate():,.0f}/s",
            "lag unknown" if None in lags else f"lag {sum(lag for lag in lags if lag is not None):,}",
            f"{sum(topic.files for topic in topics.values()):,} files",
        ]
        dead = sum(topic.dead for topic in topics.values())
        if dead:
            parts.append(f"{dead:,} set aside")
        if len(topics) > 1:
            parts.append(f"{len(topics)} topics")
        if fresh:
            parts.append(f"complete up to {max(0.0, self._clock() - min(fresh)):.0f} s ago")
        return ", ".join(parts)


def _batch(batch: Progress, figures: Figures) -> str:
    rate = batch.batch_rows / batch.batch_s if batch.batch_s else 0.0
    changed = [topic for topic in batch.topics.values() if topic.batch_rows or topic.batch_dead]
    where = f"table version {changed[0].version}" if len(changed) == 1 else f"{len(changed)} tables"
    total = sum(topic.records for topic in figures.topics().values())
    brought = f"+{batch.batch_rows:,} at {rate:,.0f}/s, {batch.batch_bytes / 1e6:.1f} MB in {batch.batch_files} files"
    aside = f", {batch.batch_dead:,} set aside" if batch.batch_dead else ""
    return f"archived {total:,} ({brought}){aside}, lag {batch.lag:,}, {where}"


class Watch:
    """Receives the messages of an archive's successive processes."""

    def __init__(self, wanted: Wanted, figures: Figures, show: Show) -> None:
        told = {name: wanted.settings[name] for name in ("redis", "table", "group", "trigger_s")}
        self._of = msgspec.convert(told, Archived)
        self._figures = figures
        self._show = show
        self._teller: Teller | None = None

    def __call__(self, message: Told) -> None:
        """Handle a message."""
        if isinstance(message, Batch):
            self._figures.took(message.progress)
            # Not before: only now the archive has found its storage and topics.
            self._teller = self._teller or Teller(self._of, self._figures)
            self._teller.news()
        elif isinstance(message, Stand):
            self._figures.stands(message.topics)
        elif isinstance(message, SparkReady):
            self._figures.unknown()
        self._show(message)

    def end(self, state: State, problem: str = "") -> None:
        """Report the final end."""
        if self._teller is not None:
            self._teller.end(state, problem)
