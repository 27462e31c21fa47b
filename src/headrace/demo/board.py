"""Progress of the demo, as bars on a terminal or lines."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleRenderable, Group, RichCast
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S = 2.0
_IDLE_LINE_EVERY_S = 10.0
_RATE_OVER_S = 2.0
_REFRESH_PER_S = 8


@dataclass
class Member:
    """State and progress of a consumer."""

    pid: int
    note: str = "starting"
    partitions: list[int] = field(default_factory=list)


class Counter:
    """A growing number and its rate."""

    def __init__(self) -> None:
        self.value = 0
        self._samples: deque[tuple[float, int]] = deque()

    def set(self, value: int) -> None:
        """Record the current value."""
        self.value = value
        now = time.monotonic()
        self._samples.append((now, value))
        while self._samples[0][0] < now - _RATE_OVER_S:
            self._samples.popleft()

    @property
    def rate(self) -> float:
        """Return the rate per second over two seconds."""
        if len(self._samples) < 2:
            return 0.0
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


class Board:
    """State and display of the demo."""

    def __init__(self, console: Console) -> None:
        self.total = 0
        self.sent = Counter()
        self.read = Counter()
        self.archived = Counter()
        self.again = 0
        """Duplicate deliveries."""
        self.lag = 0
        """Lag of the consumers' group."""
        self.archive_lag = 0
        self.version = 0
        self.state = ""
        self.members: dict[str, Member] = {}
        self.ends: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self._console = console
        self._began = time.monotonic()
        self._next_line = 0.0
        self._next_idle_line = 0.0
        self._last_line: tuple[int, ...] = ()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(self, console=self._console, refresh_per_second=_REFRESH_PER_S)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Keep the final picture on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, what: str, style: str = "") -> None:
        """Print an event with its time."""
        line = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        line.append(what, style=style or "default")
        self._console.print(line, soft_wrap=True)

    def tick(self) -> None:
        """Print progress now and then; call it often."""
        now = time.monotonic()
        if self._live is not None or not self.total or now < self._next_line:
            return
        line = (self.sent.value, self.read.value, self.archived.value, self.lag, self.archive_lag)
        if line == self._last_line and now < self._next_idle_line:
            return
        self._last_line = line
        self._next_line, self._next_idle_line = now + _LINE_EVERY_S, now + _IDLE_LINE_EVERY_S
        self.say(
            f"sent {self.sent.value:,} of {self.total:,} ({self.sent.rate:,.0f}/s), "
            f"read {self.read.value:,} ({self.read.rate:,.0f}/s, lag {self.lag:,}), "
            f"archived {self.archived.value:,} (lag {self.archive_lag:,})"
        )

    def __rich__(self) -> ConsoleRenderable | RichCast:
        if not self.total:
            return Text("")
        return Group(Text(""), self._bars(), Text(""), self._group(), Text(""))

    def _bars(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=9)
        table.add_column(width=24)
        table.add_column(justify="right", min_width=17)
        table.add_column(justify="right", min_width=9)
        table.add_column(overflow="ellipsis", no_wrap=True)
        lines: Iterable[tuple[str, Counter, str]] = (
            ("sent", self.sent, ""),
            ("read", self.read, f"lag {self.lag:,}" + (f", {self.again:,} twice" if self.again else "")),
            ("archived", self.archived, f"lag {self.archive_lag:,}, table version {self.version}"),
        )
        for name, counter, more in lines:
            bar = ProgressBar(total=self.total, completed=counter.value, width=24)
            table.add_row(name, bar, f"{counter.value:,} / {self.total:,}", f"{counter.rate:,.0f}/s", more)
        return table

    def _group(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2), title_justify="left")
        table.title = f"consumer group: {self.state}" if self.state else None
        table.add_column("reader", min_width=9)
        table.add_column("pid", justify="right")
        table.add_column("", min_width=10)
        table.add_column("partition: lag")
        for name, member in self.members.items():
            has = "  ".join(f"{number}: {self._lag(number):,}" for number in member.partitions)
            style = "red" if member.note == "killed" else ""
            table.add_row(name, str(member.pid), member.note, has or "-", style=style)
        return table

    def _lag(self, partition: int) -> int:
        return max(0, self.ends.get(partition, 0) - self.positions.get(partition, 0))
