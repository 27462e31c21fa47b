"""What a running archive reports: counted, shown on standard error, and published to the server's console.

On a terminal one line moves; elsewhere plain lines are written.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headrace.cli.archive.messages import Batch, Note, SparkReady, Stand, Told, Wanted
from headrace.lakehouse.status.counters import Figures, Progress
from headrace.lakehouse.status.document import Teller
from headrace.lakehouse.status.document import Told as Archived
from headrace.metrics.runs import State
from headrace.text import times
from headrace.text.escaping import shown

_QUIET_S: Final = 60.0
"""Into a file, an archive without new records says so this often."""


class Show(AbstractContextManager["Show"]):
    """Shows what it is told."""

    def __init__(self, figures: Figures, *, clock: Callable[[], float] = time.time) -> None:
        """`figures` has been told before; `clock` tells seconds since 1970."""
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
            # At once: the first line tells what the wait is for.
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
            if "starting anew" in message.text:
                self._ready, self._began = False, self._clock()
        elif isinstance(message, Batch):
            for line in message.progress.unreadable:
                self._say(line)
            if not self._console.is_terminal and (message.progress.batch_rows or message.progress.batch_dead):
                self._say(_batch(message.progress, self._figures))
        elif isinstance(message, Stand) and not self._console.is_terminal and self._clock() - self._said >= _QUIET_S:
            self._say(self._status())

    def _say(self, text: str) -> None:
        """One line, above the moving one."""
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
    """Hears one archive, whichever process it runs in just now."""

    def __init__(self, wanted: Wanted, figures: Figures, show: Show) -> None:
        """`figures` count from now on."""
        told = {name: wanted.settings[name] for name in ("redis", "table", "group", "trigger_s")}
        self._of = msgspec.convert(told, Archived)
        self._figures = figures
        self._show = show
        self._teller: Teller | None = None

    def __call__(self, message: Told) -> None:
        """Take a message."""
        if isinstance(message, Batch):
            self._figures.took(message.progress)
            # Not before: an archive that has begun has found its storage and its topics.
            self._teller = self._teller or Teller(self._of, self._figures)
            self._teller.news()
        elif isinstance(message, Stand):
            self._figures.stands(message.topics)
        elif isinstance(message, SparkReady):
            self._figures.unknown()
        self._show(message)

    def end(self, state: State, problem: str = "") -> None:
        """It has ended, and no other process follows."""
        if self._teller is not None:
            self._teller.end(state, problem)
